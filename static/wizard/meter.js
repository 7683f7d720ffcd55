// The needed memory against the GPU's memory, and the verdict in words.
import { h } from "../lib/dom.js";
import { gib } from "../lib/format.js";
import { t } from "../lib/words.js";

export function meter(need_gib, most_gib, verdict, isOver) {
  return h("div", { class: ["mb-meter", isOver && "mb-over", verdict === "wizard.near" && "mb-near"].filter(Boolean).join(" ") },
    h("span.mb-meter-bar", { "aria-hidden": "true" },
      h("i", { style: { width: `${Math.min(100, 100 * need_gib / most_gib)}%` } })),
    h("span.mb-meter-text", {}, `${gib(need_gib)} GiB`),
    h("span.mb-meter-verdict", {}, t(verdict)));
}
