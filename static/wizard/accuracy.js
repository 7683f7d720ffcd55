// The expected error of estimates, from measured runs.
import { percent } from "../lib/format.js";
import { sentences, t } from "../lib/words.js";

// Returns the expected error of the memory estimate.
export function accuracy(known) {
  if (!known) return t("accuracy.unknown");
  if (known.run) return t("accuracy.calibrated", { run: known.run });
  const { own } = known;
  return sentences([errorWords("memory", known.expected), own && t("accuracy.own", {
    group: t(`accuracy.group.${own.group}`), rows: own.rows, median: percent(own.median), largest: percent(own.largest) })]);
}

// The expected error of an estimate: as a sentence, and in a few words beside a figure. Without sources, the estimate
// is corrected by a run.
const whole = (share) => `${Math.round(100 * share)}%`;
const kind = (name, { sources }) => sources ? name : `${name}.calibrated`;
export const errorWords = (name, known) => t(`accuracy.${kind(name, known)}`, { sources: known.sources,
  error: whole(known.error), low: whole(known.low) });
export const errorBeside = (name, known) => known
  && t(`accuracy.beside.${known.sources ? name : "calibrated"}`, { error: whole(known.error) });
