// One chart of a run, drawn by Plotly. A curve is drawn as a whole once; then points are appended, so that nothing
// flickers and the zoom stays.
import { attribute, h, text } from "../lib/dom.js";
import { number } from "../lib/format.js";
import { axis, config, frame, palette } from "../lib/plots.js";
import { w } from "../lib/words.js";
import { ChartMenu } from "./chart_menu.js";
import { Detail } from "./detail.js";
import { Smoother } from "./smoothing.js";
import { traceId } from "./trace_id.js";

const FEW = 40;
const MOST_MARKS = 60;
const TICKS = { step: ",d", samples: ",d", tokens: ".3~s", time: ",.4~g" };
const SERVER_SMOOTHING = 0.8; // weight of the series `loss_smooth`, which the server computes from every logged loss

// `spec` has `key`, `title`, `label`, `series` (names of the curve, of its smoothed curve and of its marks), `isWide`,
// `isSmooth` (the curve is not smoothed) and `format` (of the numbers at the axis). `view` is that of chart_view.js.
// `link` is { poll(), showLog(step), move(key, by), hide(key), run() }.
export function Chart(spec, view, link) {
  const now = h("span.mbm-now");
  const range = h("span.mb-quiet");
  const plot = h("div.mbm-plot", { role: "figure" });
  const empty = h("p.mbm-empty-chart.mb-quiet", {}, w(spec.isWide ? "chart.waiting" : "chart.silent"));
  const legend = spec.isWide ? h("span.mbm-legend.mb-quiet", { "aria-hidden": "true" },
    h("i.mbm-key-raw"), w("legend.raw"), h("i.mbm-key-smooth"), w("legend.smooth")) : null;
  const menu = ChartMenu(spec.title, {
    isLog: () => view.isLog(spec.key),
    toggleLog() {
      view.toggleLog(spec.key);
      draw();
    },
    move: (by) => link.move(spec.key, by),
    hide: () => link.hide(spec.key),
    csv: () => download(csv(), `${link.run()}-${fileName(spec.key)}.csv`),
    png: () => window.Plotly.downloadImage(plot, { format: "png", scale: 2, filename: `${link.run()}-${fileName(spec.key)}` }),
  });
  const head = h("header", {}, h("h4", { title: spec.name }, spec.title), now, range, legend, menu);
  const card = h(`section.mb-card.mbm-chart${spec.isWide ? ".mbm-wide" : ""}`, { "data-chart": spec.key }, head,
    h("div.mbm-frame", {}, plot, empty));
  const [raw, smoothed, marks] = spec.series;
  const data = Object.fromEntries(spec.series.filter(Boolean).map((name) => [name, { x: [], y: [] }]));
  const detail = Detail(data);
  let run = "", isDrawn = false, smoother = null;

  const isEmpty = () => Object.values(data).every((points) => !points.x.length);
  const isFew = () => data[raw].x.length <= FEW;
  const hasOwnSmoothing = () => Boolean(smoothed) && view.smoothing() === SERVER_SMOOTHING;
  const isSmoothed = () => view.smoothing() > 0 && !spec.isSmooth && (Boolean(smoothed) || !isFew());

  function replace(ofRun, series) {
    run = ofRun;
    for (const name of Object.keys(data)) {
      const { x, y } = series[name] ?? { x: [], y: [] };
      data[name] = { x: [...x], y: [...y] };
    }
    draw();
  }

  function draw() {
    window.Plotly.react(plot, traces(), layout(), settings());
    if (!isDrawn) {
      plot.on("plotly_relayout", relayouted);
      plot.on("plotly_click", (event) => link.showLog(event.points[0].customdata));
    }
    isDrawn = true;
    updateFigures();
  }

  function traces() {
    const colours = palette(plot), hasSmooth = isSmoothed();
    /** @type {object[]} */
    const list = [curve(raw, detail.points(raw), hasSmooth ? colours.raw : colours.line, hasSmooth ? 1 : 2, isFew())];
    smoother = null;
    if (hasSmooth) list.push(curve("smooth", hasOwnSmoothing() ? detail.points(smoothed) : smooth(detail.points(raw)), colours.line, 2, false));
    if (marks) list.push(markers(detail.points(marks), colours));
    return list;
  }

  function smooth({ x, y }) {
    smoother = Smoother(view.smoothing());
    return { x, y: y.map(smoother.next) };
  }

  function curve(name, points, colour, width, hasMarkers) {
    const label = name === "smooth" ? w("legend.smooth") : spec.label;
    return {
      uid: traceId(name), x: view.x(points.x), y: points.y, customdata: points.x, name: label, showlegend: false,
      hovertemplate: `${plain(label)} %{y:.5~g}<extra></extra>`, mode: hasMarkers ? "lines+markers" : "lines",
      line: { color: colour, width }, marker: { size: 4, color: colour },
    };
  }

  function markers(points, colours) {
    const label = w(`series.${marks}`);
    return { uid: traceId(marks), x: view.x(points.x), y: points.y, customdata: points.x, name: label, showlegend: false, mode: "markers",
      marker: { symbol: "x", size: 10, color: colours.bad }, hovertemplate: `${label}<extra></extra>` };
  }

  function extend(series) {
    if (!Object.keys(data).some((name) => series[name]?.x.length)) return;
    const wasPlain = isDrawn && !isEmpty() && !isFew();
    for (const name of Object.keys(data)) {
      data[name].x.push(...(series[name]?.x ?? []));
      data[name].y.push(...(series[name]?.y ?? []));
    }
    if (!wasPlain) {
      draw();
      return;
    }
    // Plotly appends to its own arrays: the traces are copies.
    const rows = [[raw, series[raw]]];
    if (isSmoothed()) rows.push(["smooth", smoother ? smoothedPoints(series[raw]) : series[smoothed]]);
    if (marks) rows.push([marks, series[marks]]);
    const grown = rows.map(([, points], place) => ({ place, points })).filter(({ points }) => points?.x.length);
    window.Plotly.extendTraces(plot, {
      x: grown.map(({ points }) => view.x(points.x)), y: grown.map(({ points }) => points.y),
      customdata: grown.map(({ points }) => points.x),
    }, grown.map(({ place }) => place));
    updateFigures();
  }

  const smoothedPoints = (points) => points && { x: points.x, y: points.y.map(smoother.next) };

  // The user zoomed this chart. The other charts follow.
  function relayouted(changes) {
    if (!Object.keys(changes).some((name) => name.startsWith("xaxis"))) return;
    const { autorange, range } = plot.layout.xaxis;
    const steps = autorange || !range ? null : view.steps(range);
    if (isSame(steps, view.zoom())) return;
    view.setZoom(steps, spec.key);
    if (detail.zoomed(steps)) draw();
    if (detail.query()) link.poll();
  }

  // Another chart was zoomed.
  function follow() {
    detail.zoomed(view.zoom());
    if (isDrawn) draw();
  }

  function layout() {
    const colours = palette(plot), shared = axis(colours, !isEmpty()), kind = view.kind(), zoom = view.zoom();
    // A run that continues from another run's checkpoint has no points before its first step.
    const isContinued = data[raw].x[0] > FEW;
    const isLog = view.isLog(spec.key);
    return {
      ...frame(colours),
      // The zoom stays until the user changes it here or in another chart.
      uirevision: `${run} ${kind} ${zoom} ${isLog}`,
      shapes: markLines(colours),
      xaxis: { ...shared, ...(zoom ? { range: view.x(zoom), autorange: false } : { autorange: true }),
        rangemode: isContinued ? "normal" : "tozero", nticks: spec.isWide ? 12 : 6, tickformat: TICKS[kind],
        unifiedhovertitle: { text: `${w(view.xWords())} %{x:${TICKS[kind]}}` },
        title: { text: w(view.xWords()), font: { size: 11, color: colours.quiet }, standoff: 4 } },
      yaxis: { ...shared, autorangeoptions: isLog ? {} : aroundConstant(data[raw].y), nticks: 6, exponentformat: spec.format ?? "e", type: isLog ? "log" : "linear",
        uirevision: `${run} ${isLog}` },
    };
  }

  // Lines at the steps of evaluations and checkpoints. A chart with too many of them would show nothing else.
  function markLines(colours) {
    const [first, last] = view.zoom() ?? [0, Infinity];
    const { evaluations, checkpoints } = view.marks();
    const newest = data[raw].x.at(-1) ?? 0;
    const lines = (steps, colour, dash) => {
      const shown = steps.filter((step) => step >= first && step <= Math.min(last, newest));
      return shown.length > MOST_MARKS ? [] : view.x(shown).map((x) => ({
        type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, layer: "between", opacity: 0.6, line: { color: colour, width: 1, dash },
      }));
    };
    return [...lines(evaluations, colours.evaluation, "dot"), ...lines(checkpoints, colours.checkpoint, "solid")];
  }

  // All charts share the zoom, so it is reset to all steps and not to the range of the first drawing.
  const settings = () => ({ ...config(), doubleClick: "autosize", modeBarButtons: [["toImage", "autoScale2d"]] });

  function csv() {
    const { x, y } = detail.points(raw);
    return ["step,value", ...x.map((step, place) => `${step},${y[place]}`)].join("\n") + "\n";
  }

  function updateFigures() {
    const stats = summary(data[raw].y);
    const [last, low, high] = figures();
    text(now, stats ? last : "");
    text(range, stats ? w("range", { low, high }) : "");
    attribute(plot, "aria-label", w("chart.spoken", { name: spec.title, last, low, high, trend: trend() }));
    empty.hidden = Boolean(stats);
  }

  function figures() {
    const stats = summary(data[raw].y);
    return stats ? [stats.last, stats.lowest, stats.highest].map((value) => number(value)) : ["–", "–", "–"];
  }

  const trend = () => w(`trend.${summary(data[raw].y)?.trend ?? "none"}`);

  return {
    spec, card, plot, detail, replace, extend, isEmpty, figures, trend, follow,
    data: () => data,
    redraw: () => isDrawn && draw(),
    close: () => window.Plotly.purge(plot),
  };
}

const isSame = (one, other) => one === other || Boolean(one && other) && one.every((value, place) => value === other[place]);
const fileName = (key) => key.replace(/[^\w.-]+/g, "_");

function download(text, name) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  h("a", { href: url, download: name }).click();
  URL.revokeObjectURL(url);
}

// Text for a hover template of Plotly, which reads tags and %{...}. The names of metrics come from nodes.
const plain = (label) => label.replace(/[<>&%{}]/g, " ");

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

// Around a constant, Plotly alone would draw an axis from one below it to one above it: a learning rate would look like 0.
function aroundConstant(values) {
  const found = summary(values);
  return found && found.lowest === found.highest ? { include: [0.9 * found.last, 1.1 * found.last] } : {};
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
}
