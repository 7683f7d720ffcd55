// The curves of one run, drawn by Plotly. A curve is drawn as a whole once; then points are appended, so that nothing
// flickers and the zoom stays.
import { attribute, h, keyed, text } from "../lib/dom.js";
import { number } from "../lib/format.js";
import { axis, config, frame, palette, watchPlots } from "../lib/plots.js";
import { w } from "../lib/words.js";
import { Detail } from "./detail.js";

const MOST = 1500;
const FEW = 40;
const SPECS = [
  { name: "loss", series: ["loss", "loss_smooth", "loss_bad"], wide: true },
  { name: "grad_norm", series: ["grad_norm"] },
  { name: "learning_rate", series: ["learning_rate"] },
  { name: "tokens_per_s", series: ["tokens_per_s"] },
  { name: "step_s", series: ["step_s"] },
];

// `poll` makes the monitor poll the server now.
export function Charts(poll) {
  const charts = SPECS.map((spec) => build(spec, poll));
  const twin = figures();
  const root = h("section.mbm-charts", { "aria-label": w("charts") }, ...charts.map((c) => c.card), twin);
  const watcher = watchPlots(charts.map((c) => c.plot), () => charts.filter((c) => c.drawn).forEach(draw));
  let have = { run: "", generation: null, seq: null };

  function take(run, points, detail) {
    if (points) takePoints(run, points);
    if (detail && detail.generation === have.generation) {
      charts.filter((chart) => chart.detail.take(detail)).forEach(draw);
    }
  }

  function takePoints(run, points) {
    const whole = points.from === undefined;
    if (!whole && (have.run !== run || points.generation !== have.generation || points.from !== have.seq)) return;
    if (points.generation !== have.generation) charts.forEach((chart) => chart.detail.forget());
    have = { run, generation: points.generation, seq: points.seq };
    charts.forEach((chart) => (whole ? replace(chart, run, points.series) : extend(chart, points.series)));
    updateFigures();
  }

  function updateFigures() {
    keyed(twin.tBodies[0], charts, (c) => c.spec.name, figureRow, (row, chart) => {
      const stats = summary(chart.data[chart.spec.series[0]].y);
      const values = stats ? [stats.last, stats.lowest, stats.highest].map((v) => number(v)) : ["–", "–", "–"];
      [...values, w(`trend.${stats ? stats.trend : "none"}`)].forEach((value, i) =>
        text(row.cells[i + 1], value));
      text(chart.now, stats ? number(stats.last) : "");
      text(chart.range, stats ? w("range", { low: values[1], high: values[2] }) : "");
      attribute(chart.plot, "aria-label", w("chart.spoken", {
        name: title(chart), last: values[0], low: values[1], high: values[2],
        trend: w(`trend.${stats ? stats.trend : "none"}`),
      }));
      chart.empty.hidden = Boolean(stats);
    });
  }

  return {
    root,
    take,
    // Returns the request for the server. A curve that has grown too long is requested as a whole, and the server thins
    // it.
    query(run) {
      const long = charts.some((c) => Object.values(c.data).some((points) => points.x.length > MOST));
      return have.run === run && !long ? { generation: have.generation, seq: have.seq } : {};
    },
    detailQuery: () => charts.map((chart) => chart.detail.query()).find(Boolean),
    isEmpty: () => charts.every(isEmpty),
    summary: () => charts.map((c) => ({ name: c.spec.name, points: c.data[c.spec.series[0]].x.length })),
    data: (name) => charts.find((c) => name in c.data)?.data[name],
    close() {
      watcher.close();
      charts.forEach((chart) => window.Plotly.purge(chart.plot));
    },
  };
}

function build(spec, poll) {
  const now = h("span.mbm-now");
  const range = h("span.mb-quiet");
  const plot = h("div.mbm-plot", { role: "figure" });
  const empty = h("p.mbm-empty-chart.mb-quiet", {}, w(spec.wide ? "chart.waiting" : "chart.silent"));
  const legend = spec.wide ? h("span.mbm-legend.mb-quiet", { "aria-hidden": "true" },
    h("i.mbm-key-raw"), w("legend.raw"), h("i.mbm-key-smooth"), w("legend.smooth")) : null;
  const heading = h("h4", {}, w(`chart.${spec.name}`));
  const head = h("header", {}, heading, now, range, legend);
  const card = h(`section.mb-card.mbm-chart${spec.wide ? ".mbm-wide" : ""}`, {}, head, h("div.mbm-frame", {}, plot, empty));
  const data = Object.fromEntries(spec.series.map((name) => [name, { x: [], y: [] }]));
  return { spec, card, plot, now, range, empty, data, detail: Detail(data), poll, drawn: false };
}

function title(chart) {
  return w(`chart.${chart.spec.name}`);
}

function replace(chart, run, series) {
  for (const name of chart.spec.series) {
    const { x, y } = series[name] ?? { x: [], y: [] };
    chart.data[name] = { x: [...x], y: [...y] };
  }
  chart.run = run;
  draw(chart);
}

function draw(chart) {
  const traces = chart.spec.series.map((name) => trace(chart, name));
  window.Plotly.react(chart.plot, traces, layout(chart), config());
  if (!chart.drawn) chart.plot.on("plotly_relayout", () => zoomed(chart));
  chart.drawn = true;
}

function zoomed(chart) {
  const { autorange, range } = chart.plot.layout.xaxis;
  if (chart.detail.zoomed(autorange || !range ? null : range)) draw(chart);
  if (chart.detail.query()) chart.poll();
}

function extend(chart, series) {
  const grown = chart.spec.series.map((name, place) => ({ name, place, more: series[name] })).filter((item) => item.more);
  if (!grown.length) return;
  const fewBefore = isFew(chart);
  const emptyBefore = isEmpty(chart);
  for (const { name, more } of grown) {
    chart.data[name].x.push(...more.x);
    chart.data[name].y.push(...more.y);
  }
  if (emptyBefore) {
    draw(chart);
    return;
  }
  // Plotly appends to its own arrays: the traces are copies.
  const update = { x: grown.map((item) => item.more.x), y: grown.map((item) => item.more.y) };
  window.Plotly.extendTraces(chart.plot, update, grown.map((item) => item.place));
  if (fewBefore && !isFew(chart)) window.Plotly.restyle(chart.plot, { mode: "lines" }, [0]);
}

function isEmpty(chart) {
  return Object.values(chart.data).every((points) => !points.x.length);
}

function isFew(chart) {
  return chart.data[chart.spec.series[0]].x.length <= FEW;
}

function trace(chart, name) {
  const colours = palette(chart.plot);
  const label = w(`series.${name}`);
  const shared = { ...chart.detail.points(name), name: label, showlegend: false, hovertemplate: `${label} %{y:.5~g}<extra></extra>` };
  if (name === "loss_bad") {
    const marker = { symbol: "x", size: 10, color: colours.bad };
    return { ...shared, mode: "markers", marker, hovertemplate: `${label}<extra></extra>` };
  }
  const raw = name === "loss";
  return {
    ...shared,
    mode: isFew(chart) && name !== "loss_smooth" ? "lines+markers" : "lines",
    line: { color: raw ? colours.raw : colours.line, width: raw ? 1 : 2 },
    marker: { size: 4, color: raw ? colours.raw : colours.line },
  };
}

function layout(chart) {
  const colours = palette(chart.plot), shared = axis(colours, !isEmpty(chart));
  // A run that continues from another run's checkpoint has no points before its first step.
  const isContinued = chart.data[chart.spec.series[0]].x[0] > FEW;
  return {
    ...frame(colours),
    uirevision: chart.run,
    xaxis: { ...shared, rangemode: isContinued ? "normal" : "tozero", nticks: chart.spec.wide ? 12 : 6, tickformat: ",d",
      unifiedhovertitle: { text: `${w("axis.step")} %{x:,d}` },
      title: { text: w("axis.step"), font: { size: 11, color: colours.quiet }, standoff: 4 } },
    yaxis: { ...shared, nticks: 6, exponentformat: chart.spec.name === "tokens_per_s" ? "SI" : "e" },
  };
}

// Returns the last value, the extremes, and whether the last tenth lies above or below the values before it.
function summary(values) {
  if (!values.length) return null;
  let lowest = Infinity;
  let highest = -Infinity;
  for (const value of values) {
    if (value < lowest) lowest = value;
    if (value > highest) highest = value;
  }
  const tail = Math.max(1, Math.floor(values.length / 10));
  const before = mean(values.slice(-3 * tail, -tail));
  const change = mean(values.slice(-tail)) - before;
  const flat = values.length < 4 || Math.abs(change) <= 0.01 * Math.max(Math.abs(before), 1e-12);
  return { last: values.at(-1), lowest, highest, trend: flat ? "flat" : change < 0 ? "falling" : "rising" };
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
}

function figures() {
  const names = ["figure.chart", "figure.last", "figure.lowest", "figure.highest", "figure.trend"];
  const head = h("tr", {}, ...names.map((name) => h("th", { scope: "col" }, w(name))));
  return h("table.mbm-spoken", {}, h("caption", {}, w("figures")), h("thead", {}, head), h("tbody"));
}

function figureRow(chart) {
  return h("tr", {}, h("th", { scope: "row" }, title(chart)), h("td"), h("td"), h("td"), h("td"));
}
