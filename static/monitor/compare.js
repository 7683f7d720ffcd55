// What a run measured beside what was predicted for it, and the button that corrects the cluster's estimates by it.
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

  function take(found) {
    const isKnown = Boolean(found && (found.useful || found.why.length));
    root.hidden = !isKnown;
    if (!isKnown) return;
    attribute(root, "data-used", found.used);
    button.hidden = !found.useful || found.used;
    button.disabled = false;
    const wanted = sentences(found);
    while (lines.children.length > wanted.length) lines.lastChild.remove();
    wanted.forEach(([words, kind], place) => {
      if (!lines.children[place]) lines.append(h("p"));
      text(lines.children[place], words);
      attribute(lines.children[place], "class", kind);
    });
  }

  return { root, take };
}

function sentences(found) {
  const told = [];
  const seconds = (value) => number(value, 3);
  if (found.step_s !== null && found.predicted_step_s !== null)
    told.push([w("compare.time", { predicted: seconds(found.predicted_step_s), measured: seconds(found.step_s),
      steps: found.steps }), "mbm-compare-figure"]);
  if (found.reserved_gib !== null && found.predicted_reserved_gib !== null)
    told.push([w("compare.memory", { predicted: number(found.predicted_reserved_gib, 3),
      measured: number(found.reserved_gib, 3) }), "mbm-compare-figure"]);
  if (found.used) told.push([w("compare.used"), "mbm-compare-used"]);
  return [...told, ...found.why.map((reason) => [reason, "mb-quiet"])];
}
