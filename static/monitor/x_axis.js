// The x axis of all charts of a run. The server sends time and tokens at some hundred steps; between them the values are
// interpolated, and after the last one they continue at the last rate.

export const X_KINDS = ["step", "tokens", "samples", "time"];

const MINUTE_S = 60, HOUR_S = 3600;

// Returns the unit of the time axis in seconds: hours for a run of more than three hours, else minutes.
export const timeUnit = (axis) => (axis?.time.at(-1) ?? 0) > 3 * HOUR_S ? HOUR_S : MINUTE_S;

// `axis` is { steps, time, tokens, samples } of the server, or null. Returns the values of `steps`, or null if they are
// not known.
export function toX(kind, axis, steps) {
  if (kind === "step") return [...steps];
  if (kind === "samples") return axis?.samples ? steps.map((step) => step * axis.samples) : null;
  const values = axis && (kind === "time" ? axis.time : axis.tokens);
  const unit = kind === "time" ? timeUnit(axis) : 1;
  return values?.length > 1 ? steps.map((step) => interpolated(axis.steps, values, step) / unit) : null;
}

// Returns the step of a value.
export function toStep(kind, axis, value) {
  if (kind === "step") return value;
  if (kind === "samples") return value / axis.samples;
  return kind === "time" ? interpolated(axis.time, axis.steps, value * timeUnit(axis)) : interpolated(axis.tokens, axis.steps, value);
}

// Returns the value at `at` of the line through the points (from, to). `from` ascends.
function interpolated(from, to, at) {
  let [low, high] = [0, from.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (from[middle] <= at) low = middle;
    else high = middle;
  }
  const width = from[high] - from[low];
  return width ? to[low] + (to[high] - to[low]) * (at - from[low]) / width : to[high];
}
