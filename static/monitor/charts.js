// The charts of one run: those of every training, then the numbers that this one logs by name (metrics.js).
import { h, keyed, text } from "../lib/dom.js";
import { watchPlots } from "../lib/plots.js";
import { w } from "../lib/words.js";
import { Chart } from "./chart.js";
import { ChartView } from "./chart_view.js";
import { Metrics } from "./metrics.js";

const MOST = 1500;
const SPECS = [
  { key: "loss", series: ["loss", "loss_smooth", "loss_bad"], isWide: true },
  { key: "grad_norm" },
  { key: "learning_rate", isSmooth: true },
  { key: "tokens_per_s", format: "SI" },
  { key: "step_s" },
];

// `poll` makes the monitor poll the server now.
export function Charts(poll) {
  const view = ChartView();
  const charts = SPECS.map((spec) => Chart({ series: [spec.key], ...spec, title: w(`chart.${spec.key}`), label: w(`series.${spec.key}`) }, view, poll));
  const twin = figures();
  const basic = h("div.mbm-charts.mbm-basic", {}, ...charts.map((chart) => chart.card));
  const metrics = Metrics(view, poll);
  const root = h("section.mbm-curves", { "aria-label": w("charts") }, basic, metrics.root, twin);
  const watcher = watchPlots(charts.map((chart) => chart.plot), () => charts.forEach((chart) => chart.redraw()));
  let have = { run: "", generation: null, seq: null };

  // `answer` has the parts `points`, `metrics`, `values` and `detail` of a poll's answer.
  function take(run, { points, metrics: names, values, detail }) {
    if (points) takePoints(run, points);
    if (names) metrics.takeNames(run, names);
    if (values) metrics.takeValues(values);
    if (detail) takeDetail(detail);
    if (points || names || values) updateFigures();
  }

  function takePoints(run, points) {
    const whole = points.from === undefined;
    if (!whole && (have.run !== run || points.generation !== have.generation || points.from !== have.seq)) return;
    if (points.generation !== have.generation) charts.forEach((chart) => chart.detail.forget());
    have = { run, generation: points.generation, seq: points.seq };
    charts.forEach((chart) => (whole ? chart.replace(run, points.series) : chart.extend(points.series)));
  }

  function takeDetail(detail) {
    metrics.takeDetail(detail);
    if (detail.generation !== have.generation) return;
    charts.filter((chart) => chart.detail.take(detail)).forEach((chart) => chart.redraw());
  }

  function updateFigures() {
    keyed(twin.tBodies[0], [...charts, ...metrics.all()], (chart) => chart.spec.key, figureRow, (row, chart) => {
      [...chart.figures(), chart.trend()].forEach((value, place) => text(row.cells[place + 1], value));
    });
  }

  const dataOf = (name) => charts.find((chart) => name in chart.data())?.data()[name] ?? metrics.data(name);

  return {
    root,
    take,
    // Returns the request for the server. A curve that has grown too long is requested as a whole, and the server thins
    // it.
    query(run) {
      const long = charts.some((chart) => Object.values(chart.data()).some((points) => points.x.length > MOST));
      return have.run === run && !long ? { generation: have.generation, seq: have.seq } : {};
    },
    metricsQuery: metrics.query,
    detailQuery: () => charts.map((chart) => chart.detail.query()).find(Boolean) ?? metrics.detailQuery(),
    isEmpty: () => charts.every((chart) => chart.isEmpty()) && !metrics.all().length,
    summary: () => charts.map((chart) => ({ name: chart.spec.key, points: chart.data()[chart.spec.series[0]].x.length })),
    data: dataOf,
    close() {
      watcher.close();
      charts.forEach((chart) => chart.close());
      metrics.close();
    },
  };
}

function figures() {
  const names = ["figure.chart", "figure.last", "figure.lowest", "figure.highest", "figure.trend"];
  const head = h("tr", {}, ...names.map((name) => h("th", { scope: "col" }, w(name))));
  return h("table.mbm-spoken", {}, h("caption", {}, w("figures")), h("thead", {}, head), h("tbody"));
}

function figureRow(chart) {
  return h("tr", {}, h("th", { scope: "row" }, chart.spec.title), h("td"), h("td"), h("td"), h("td"));
}
