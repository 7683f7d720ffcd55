// The charts of one run: those of every training, then the numbers that this one logs by name (metrics.js).
import { h, keyed, text } from "../lib/dom.js";
import { watchPlots } from "../lib/plots.js";
import { w } from "../lib/words.js";
import { Chart } from "./chart.js";
import { ChartToolbar } from "./chart_toolbar.js";
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

// `link` is { poll(), showLog(step) }: poll the server now, and show the line of a step in the log.
export function Charts(link) {
  const view = ChartView();
  let have = { run: "", generation: null, seq: null }, seenMarks = "";
  const own = { ...link, run: () => have.run, move, hide };
  const charts = SPECS.map((spec) => Chart({ series: [spec.key], ...spec, title: w(`chart.${spec.key}`), label: w(`series.${spec.key}`) }, view, own));
  const cards = new Map(charts.map((chart) => [chart.spec.key, chart.card]));
  const twin = figures();
  const basic = h("div.mbm-charts.mbm-basic");
  const metrics = Metrics(view, own);
  const titleOf = (key) => charts.find((chart) => chart.spec.key === key)?.spec.title ?? metrics.titleOf(key);
  const toolbar = ChartToolbar(view, { redraw, poll: link.poll, titleOf, show: hide });
  const root = h("section.mbm-curves", { "aria-label": w("charts") }, toolbar.root, basic, metrics.root, twin);
  const watcher = watchPlots(charts.map((chart) => chart.plot), redrawBasic);
  view.onZoom((source) => {
    all().filter((chart) => chart.spec.key !== source).forEach((chart) => chart.follow());
    if (detailQuery()) link.poll();
  });

  const all = () => [...charts, ...metrics.all()];

  function arrange() {
    keyed(basic, basicKeys(), (key) => key, (key) => cards.get(key), () => {});
    metrics.arrange();
    toolbar.take(have.run, view.chosen.hidden.filter(titleOf));
  }

  const basicKeys = () => view.ordered(SPECS.map((spec) => spec.key).filter((key) => !view.isHidden(key)));

  function move(key, by) {
    view.move(cards.has(key) ? basicKeys() : metrics.keysOf(metrics.groupOf(key)), key, by);
    arrange();
  }

  // Hides a chart, or shows it again.
  function hide(key) {
    view.toggleHidden(key);
    arrange();
    redraw();
    link.poll();
  }

  function redrawBasic() {
    charts.forEach((chart) => chart.redraw());
  }

  function redraw() {
    all().forEach((chart) => chart.redraw());
  }

  // `answer` has the parts `points`, `metrics`, `values`, `axis` and `detail` of a poll's answer.
  function take(run, { points, metrics: names, values, axis, detail }) {
    if (axis) view.takeAxis(axis);
    if (points) takePoints(run, points);
    if (names) metrics.takeNames(run, names);
    if (values) metrics.takeValues(values);
    if (detail) takeDetail(detail);
    if (names || points) toolbar.take(have.run, view.chosen.hidden.filter(titleOf));
    if (axis) toolbar.takeAxis();
    if (takeMarks() || axis) redraw();
    if (points || names || values) updateFigures();
  }

  // Returns whether the marks have changed.
  function takeMarks() {
    const marks = metrics.marks(), words = JSON.stringify(marks);
    if (words === seenMarks) return false;
    seenMarks = words;
    view.takeMarks(marks);
    return true;
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
    keyed(twin.tBodies[0], all(), (chart) => chart.spec.key, figureRow, (row, chart) => {
      [...chart.figures(), chart.trend()].forEach((value, place) => text(row.cells[place + 1], value));
    });
  }

  const detailQuery = () => charts.map((chart) => chart.detail.query()).find(Boolean) ?? metrics.detailQuery();

  arrange();
  return {
    root,
    take,
    // Returns the parts of the request for the server. A curve that has grown too long is requested as a whole, and the
    // server thins it.
    query(run) {
      const long = charts.some((chart) => Object.values(chart.data()).some((points) => points.x.length > MOST));
      const points = have.run === run && !long ? { generation: have.generation, seq: have.seq } : {};
      return { points, metrics: metrics.query(), detail: detailQuery(), axis: view.axisQuery() };
    },
    isEmpty: () => charts.every((chart) => chart.isEmpty()) && !metrics.all().length,
    summary: () => charts.map((chart) => ({ name: chart.spec.key, points: chart.data()[chart.spec.series[0]].x.length })),
    data: (name) => charts.find((chart) => name in chart.data())?.data()[name] ?? metrics.data(name),
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
