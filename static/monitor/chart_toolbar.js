// The controls above the charts: x axis, smoothing, marks, hidden charts and the download of all numbers.
import { attribute, h, keyed, text } from "../lib/dom.js";
import { w } from "../lib/words.js";
import { X_KINDS } from "./x_axis.js";

// `acts` is { redraw(), poll(), show(key), titleOf(key) }.
export function ChartToolbar(view, acts) {
  const x = h("select", { "aria-label": w("chart.x"), onchange: () => {
    view.setZoom(null, null);
    view.choose({ x: x.value });
    acts.redraw();
    acts.poll();
  } }, X_KINDS.map((kind) => h("option", { value: kind }, w(`chart.x.${kind}`))));
  const percent = h("output.mb-quiet");
  const smoothing = h("input", { type: "range", min: "0", max: "0.99", step: "0.01", "aria-label": w("chart.smoothing"),
    oninput: () => {
      view.choose({ smoothing: Number(smoothing.value) });
      text(percent, smoothing.value);
      acts.redraw();
    } });
  const marks = h("input", { type: "checkbox", onchange: () => {
    view.choose({ marks: marks.checked });
    acts.redraw();
  } });
  const reset = h("button.mbm-chip", { type: "button", hidden: true, onclick: () => view.setZoom(null, null) }, w("chart.reset"));
  const hidden = h("select", { "aria-label": w("chart.hidden"), hidden: true, onchange: () => {
    if (hidden.value) acts.show(hidden.value);
  } }, h("option", { value: "" }));
  const csv = h("a.mbm-chip", { download: "" }, w("chart.csv"));
  const root = h("div.mbm-chart-toolbar", {}, h("label", {}, w("chart.x"), x), h("label", {}, w("chart.smoothing"), smoothing, percent),
    h("label", {}, marks, h("span", {}, h("i.mbm-key-evaluation"), w("chart.evaluations")), h("span", {}, h("i.mbm-key-checkpoint"), w("chart.checkpoints"))),
    reset, hidden, csv);
  x.value = view.chosen.x;
  smoothing.value = String(view.chosen.smoothing);
  text(percent, smoothing.value);
  marks.checked = view.chosen.marks;
  view.onZoom(() => { reset.hidden = !view.zoom(); });

  return {
    root,
    take(run, hiddenKeys) {
      attribute(csv, "href", `/api/metrics/${encodeURIComponent(run)}.csv`);
      hidden.hidden = !hiddenKeys.length;
      keyed(hidden, ["", ...hiddenKeys], (key) => `key ${key}`, () => h("option"), (option, key) => {
        attribute(option, "value", key);
        text(option, key ? acts.titleOf(key) : w("chart.hidden.count", { count: hiddenKeys.length }));
      });
      hidden.value = "";
    },
    takeAxis() {
      const samples = [...x.options].find((option) => option.value === "samples");
      samples.disabled = !view.hasSamples();
    },
  };
}
