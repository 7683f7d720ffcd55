// The 80 % interval of the needed memory against the GPU's memory, and the verdict in words. The bar shows the computed
// need; its paler end goes to the upper bound. An assumed need has no interval (null).
import { h } from "../lib/dom.js";
import { gib } from "../lib/format.js";
import { t } from "../lib/words.js";
import { range } from "./accuracy.js";

export function meter(need_gib, ends, most_gib, verdict, isOver) {
  const [low, high] = ends ?? [need_gib, need_gib];
  const width = (value) => ({ width: `${Math.min(100, 100 * value / most_gib)}%` });
  return h("div", { class: ["mb-meter", isOver && "mb-over", verdict === "wizard.near" && "mb-near", !ends && "mb-assumed"].filter(Boolean).join(" ") },
    h("span.mb-meter-bar", { "aria-hidden": "true" },
      h("i.mb-meter-upper", { style: width(high) }), h("i", { style: width(need_gib) })),
    h("span.mb-meter-text", { title: t(ends ? "accuracy.computed" : "accuracy.memory.assumed", { gib: gib(need_gib) }) },
      ends ? `${range(low, high)} GiB` : t("accuracy.assumed.gib", { gib: gib(need_gib) })),
    h("span.mb-meter-verdict", {}, t(verdict)));
}
