// The measured figures of a run beside the predicted ones, why its first steps are outside of the intervals, and the
// buttons that correct the cluster's estimates by the run and plan again.
import { setCommands } from "../lib/commands.js";
import { attribute, h, text } from "../lib/dom.js";
import { number } from "../lib/format.js";
import { w } from "../lib/words.js";
import { openInWizard } from "./checkpoints.js";

export function Compare(id, use) {
  const lines = h("div.mbm-compare-lines");
  const refused = h("p.mbm-compare-refused", { role: "alert", hidden: true });
  // The page goes to the wizard, unless the server refuses.
  const opening = {
    isOpen: () => true,
    close: () => { again.disabled = false; },
    wait: () => { again.disabled = true; },
    fail: (problem) => {
      again.disabled = false;
      refused.hidden = false;
      setCommands(refused, `${problem.message} ${problem.fix}`);
    },
  };
  const again = h("button.mb-button.mb-primary", { type: "button", title: w("compare.again.help"),
    onclick: () => openInWizard(id, 0, opening, null, true) }, w("compare.again"));
  const button = h("button.mb-button", { type: "button", onclick: () => {
    button.disabled = true;
    use();
  } }, w("compare.use"));
  const root = h("section.mb-card.mbm-compare", { "aria-label": w("compare.title"), hidden: true }, lines, refused,
    h("div.mbm-buttons", {}, again, button));

  function take(comparison) {
    const isKnown = Boolean(comparison && (comparison.useful || comparison.why.length));
    root.hidden = !isKnown;
    if (!isKnown) return;
    attribute(root, "data-used", comparison.used);
    button.hidden = !comparison.useful || comparison.used;
    button.disabled = false;
    again.hidden = !comparison.useful || !comparison.outside.length;
    const rows = sentences(comparison);
    while (lines.children.length > rows.length) lines.lastChild.remove();
    rows.forEach(([words, kind], place) => {
      if (!lines.children[place]) lines.append(h("p"));
      text(lines.children[place], words);
      attribute(lines.children[place], "class", kind);
    });
  }

  return { root, take };
}

// An assumed memory has no interval.
function memoryWords({ predicted_reserved_gib: assumed, predicted_reserved_gib_low: low, predicted_reserved_gib_high: high }, measured) {
  return low === null ? w("compare.memory.assumed", { predicted: number(assumed, 2), measured })
    : w("compare.memory", { low: number(low, 2), high: number(high, 2), measured });
}

function sentences(comparison) {
  const rows = [];
  const seconds = (value) => number(value, 3);
  if (comparison.step_s !== null && comparison.predicted_step_s !== null)
    rows.push([w("compare.time", { low: seconds(comparison.predicted_step_s_low), high: seconds(comparison.predicted_step_s_high), measured: seconds(comparison.step_s),
      steps: comparison.steps }), "mbm-compare-figure"]);
  if (comparison.reserved_gib !== null && comparison.predicted_reserved_gib !== null)
    rows.push([memoryWords(comparison, number(comparison.reserved_gib, 3)), "mbm-compare-figure"]);
  for (const reason of comparison.outside) rows.push([reason, "mbm-compare-outside"]);
  if (comparison.used) rows.push([w("compare.used"), "mbm-compare-used"]);
  return [...rows, ...comparison.why.map((reason) => [reason, "mb-quiet"])];
}
