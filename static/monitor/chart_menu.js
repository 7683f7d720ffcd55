// The menu of a chart: logarithmic axis, order, download, and hiding the chart.
import { h } from "../lib/dom.js";
import { w } from "../lib/words.js";

// `acts` is { isLog(), toggleLog(), move(by), hide(), csv(), png() }.
export function ChartMenu(title, acts) {
  const button = (key, act) => h("button", { type: "button", onclick: () => {
    root.open = false;
    root.firstChild.focus();
    act();
  } }, w(`chart.menu.${key}`));
  const log = h("input", { type: "checkbox", onchange: () => acts.toggleLog() });
  const root = h("details.mbm-menu", {
    onkeydown: (event) => {
      if (event.key !== "Escape") return;
      root.open = false;
      root.firstChild.focus();
    },
    ontoggle: () => { log.checked = acts.isLog(); },
    onfocusout: (event) => { if (!root.contains(event.relatedTarget)) root.open = false; },
  },
  h("summary", { "aria-label": w("chart.menu", { title }), title: w("chart.menu", { title }) }, "⋯"),
  h("div.mbm-menu-items", {}, h("label", {}, log, w("chart.menu.log")), button("earlier", () => acts.move(-1)),
    button("later", () => acts.move(1)), button("csv", acts.csv), button("png", acts.png), button("hide", acts.hide)));
  return root;
}
