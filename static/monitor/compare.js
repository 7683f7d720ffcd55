// The measured figures of a run beside the predicted ones, and the button that corrects the cluster's estimates by
// them.
import { attribute, h, text } from "../lib/dom.js";
import { number } from "../lib/format.js";
import { w } from "../lib/words.js";

export function Compare(use) {
  const lines = h("div.mbm-compare-lines");
  const button = h("button.mb-button", { type: "button", onclick: () => {
    button.disabled = true;
    use();
  } }, w("compare.use"));
  const root = h("section.mb-card.mbm-compare", { "aria-label": w("compare.title"), hidden: true }, lines, button);

  function take(comparison) {
    const isKnown = Boolean(comparison && (comparison.useful || comparison.why.length));
    root.hidden = !isKnown;
    if (!isKnown) return;
    attribute(root, "data-used", comparison.used);
    button.hidden = !comparison.useful || comparison.used;
    button.disabled = false;
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

function sentences(comparison) {
  const rows = [];
  const seconds = (value) => number(value, 3);
  if (comparison.step_s !== null && comparison.predicted_step_s !== null)
    rows.push([w("compare.time", { predicted: seconds(comparison.predicted_step_s), measured: seconds(comparison.step_s),
      steps: comparison.steps }), "mbm-compare-figure"]);
  if (comparison.reserved_gib !== null && comparison.predicted_reserved_gib !== null)
    rows.push([w("compare.memory", { predicted: number(comparison.predicted_reserved_gib, 3),
      measured: number(comparison.reserved_gib, 3) }), "mbm-compare-figure"]);
  if (comparison.used) rows.push([w("compare.used"), "mbm-compare-used"]);
  return [...rows, ...comparison.why.map((reason) => [reason, "mb-quiet"])];
}
