// Numbers as the page writes them. A dash means that a number is unknown.
import { lang } from "./words.js";

const isUnknown = (value) => value === null || value === undefined;
const locale = () => lang() === "zh" ? "zh-CN" : "en-GB";

export const gib = (value) => value >= 100 ? grouped(Math.round(value)) : value.toFixed(1);
export const rounded = (value, digits = 3) => grouped(Number(value.toPrecision(digits)));
export const grouped = (value) => value.toLocaleString("en");
export const percent = (value) => `${value ? (100 * value).toFixed(1) : 0}%`;
// The ends of an interval have fewer digits than a figure.
export const short = (value) => value >= 10 ? grouped(Math.round(value)) : value >= 1 ? value.toFixed(1) : rounded(value, 2);

// Example: 7.62 B.
export function count(value) {
  for (const [size, letter] of /** @type {[number, string][]} */ ([[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"]])) {
    const digits = value >= 100 * size ? 0 : value >= 10 * size ? 1 : 2;
    if (value >= size) return `${(value / size).toFixed(digits)} ${letter}`;
  }
  return String(value);
}

// At least `digits` significant digits, and all digits before the point.
export function number(value, digits = 4) {
  if (isUnknown(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e9)) return value.toExponential(2);
  const style = size === 0 || size >= 10 ** (digits - 1)
    ? { maximumFractionDigits: 0 } : { minimumSignificantDigits: digits, maximumSignificantDigits: digits };
  return new Intl.NumberFormat(locale(), style).format(value);
}

export const whole = (value) => isUnknown(value) ? "–" : new Intl.NumberFormat(locale()).format(Math.round(value));

export const mibAsGib = (value) => isUnknown(value) ? "–" : number(value / 1024, 3);

// Returns the step of an axis: 1, 2 or 5 times a power of ten. At most `steps` of them lie below `most`.
export function axisStep(most, steps) {
  const rough = most / steps, power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
}
