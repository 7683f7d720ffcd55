// The intervals of estimates, from measured runs.
import { percent, short } from "../lib/format.js";
import { sentences, t } from "../lib/words.js";

// Returns the interval of the memory estimate, and its error on the own sources. An assumed need has neither.
export function accuracy(known) {
  if (!known) return t("accuracy.unknown");
  if (!known.expected) return sentences([known.run && t("accuracy.calibrated", { run: known.run }), t("accuracy.memory.assumed")]);
  if (known.run) return sentences([t("accuracy.calibrated", { run: known.run }), errorWords("memory", known.expected)]);
  const { own } = known;
  return sentences([errorWords("memory", known.expected), own && t("accuracy.own", {
    group: t(`accuracy.group.${own.group}`), rows: own.rows, median: percent(own.median), largest: percent(own.largest) })]);
}

// The 80 % interval of an estimate: as a sentence, and beside a figure. Without sources, the estimate is corrected by a
// run.
const whole = (share) => `${Math.round(100 * share)}%`;
const kind = (name, { sources }) => sources ? name : `${name}.calibrated`;
export const errorWords = (name, known) => sentences([t(`accuracy.${kind(name, known)}`, { sources: known.sources,
  low: whole(known.low), high: whole(known.high) }), ...known.unknown.map((each) => t(`accuracy.not_known.${name}.${each}`))]);
export const range = (low, high, draw = short) => low === null ? t("accuracy.up_to", { high: draw(high) })
  : t("accuracy.beside", { low: draw(low), high: draw(high) });
// `draw` turns a figure into words, and `low` names the lower factor. A speed is low where the time is high.
export const errorBeside = (known, value, draw, low = "low") => known
  && range(known[low] && value * known[low], value * known.high, draw);
export const speedBeside = (known, value, draw) => known
  && range(value / known.high, value / known.low, draw);
