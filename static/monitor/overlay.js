// One metric of several runs in one chart. Each run has a colour, and a thin raw curve behind its smoothed one. A chart
// that is far from the screen is drawn when it comes near.
import { h, text } from "../lib/dom.js";
import { axis, config, frame, palette } from "../lib/plots.js";
import { w } from "../lib/words.js";
import { Detail } from "./detail.js";
import { Smoother } from "./smoothing.js";
import { traceId } from "./trace_id.js";

// The palette of Okabe and Ito, which people with colour blindness can tell apart (https://jfly.uni-koeln.de/color/),
// with grey for its black.
export const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a7a00", "#8c8c8c"];

const FEW = 40; // a curve of so few points is not smoothed
// Margins that Plotly fits to the labels cost half of the time of a first drawing.
const MARGIN = { l: 58, r: 12, t: 6, b: 36 };

// `settings` has `smoothing` and `isLog`. `labels` maps a run to its name, `shown` says whether its curve is shown.
export function Overlay(spec, runs, { settings, labels, shown, poll, zoomed }) {
  const plot = h("div.mbm-plot", { role: "figure" });
  const empty = h("p.mbm-empty-chart.mb-quiet", {}, w("side.silent"));
  const card = h("section.mb-card.mbm-chart", { "data-chart": spec.key }, h("header", {}, h("h4", { title: spec.key }, spec.title)),
    h("div.mbm-frame", {}, plot, empty));
  const curves = Object.fromEntries(runs.map((run) => {
    const data = { [spec.key]: { x: [], y: [] } };
    return [run, { data, detail: Detail(data) }];
  }));
  let isDrawn = false, isFollowing = false, isNear = false, isStale = false, zoom = null;

  const points = (run) => curves[run].detail.points(spec.key);

  function take(run, { x, y }, isMore) {
    const { data } = curves[run];
    if (isMore) {
      data[spec.key].x.push(...x);
      data[spec.key].y.push(...y);
    } else {
      data[spec.key] = { x: [...x], y: [...y] };
    }
  }

  function draw() {
    isStale = !isNear;
    if (isStale) return;
    const traces = runs.flatMap((run, place) => (shown(run) ? tracesOf(run, COLOURS[place]) : []));
    empty.hidden = traces.some((trace) => trace.x.length);
    text(empty, w("side.silent"));
    window.Plotly.react(plot, traces, layout(), config());
    if (!isDrawn) plot.on("plotly_relayout", relayout);
    isDrawn = true;
  }

  function tracesOf(run, colour) {
    const { x, y } = points(run), label = labels(run);
    const base = { x, name: label, showlegend: false, mode: x.length > 1 ? "lines" : "markers" };
    const hover = `${plain(label)} %{y:.5~g}<extra></extra>`;
    const line = { ...base, y, uid: traceId(run), line: { color: colour, width: 2 }, marker: { color: colour }, hovertemplate: hover };
    if (!settings.smoothing || spec.isSmooth || x.length <= FEW) return [line];
    const smoother = Smoother(settings.smoothing);
    return [{ ...line, uid: traceId(`${run} raw`), opacity: 0.25, line: { color: colour, width: 1 }, hoverinfo: "skip", hovertemplate: null },
      { ...line, y: y.map(smoother.next) }];
  }

  // A zoom of one chart is that of all.
  function relayout() {
    if (isFollowing) return;
    const { autorange, range } = plot.layout.xaxis;
    zoomed(autorange || !range ? null : range);
  }

  function follow(range) {
    const mustDraw = Object.values(curves).map(({ detail }) => detail.zoomed(range)).some(Boolean);
    zoom = range;
    if (mustDraw || !isNear) draw();
    else if (isDrawn && !isShown(range)) {
      isFollowing = true;
      window.Plotly.relayout(plot, range ? { "xaxis.range": range } : { "xaxis.autorange": true }).then(() => { isFollowing = false; });
    }
    if (query()) poll();
  }

  const isShown = (range) => {
    const { autorange, range: shown } = plot.layout.xaxis;
    return range ? !autorange && String(shown) === String(range) : autorange;
  };

  const query = () => runs.map((run) => curves[run].detail.query()).find(Boolean);

  function takeDetail(run, detail, curve) {
    return curve && curves[run].detail.take({ ...detail, series: { [spec.key]: curve } });
  }

  function layout() {
    const colours = palette(plot), visible = runs.some((run) => points(run).x.length);
    const shared = { ...axis(colours, visible), automargin: false };
    return {
      ...frame(colours),
      margin: MARGIN,
      uirevision: `${spec.key} ${zoom}`,
      xaxis: { ...shared, ...(zoom ? { range: [...zoom], autorange: false } : { autorange: true }), nticks: 6, tickformat: ",d", unifiedhovertitle: { text: `${w("axis.step")} %{x:,d}` },
        title: { text: w("axis.step"), font: { size: 11, color: colours.quiet }, standoff: 4 } },
      yaxis: { ...shared, uirevision: spec.key, nticks: 6, exponentformat: spec.format ?? "e", type: settings.isLog ? "log" : "linear" },
    };
  }

  return {
    spec, card, plot, take, draw, follow, query, takeDetail,
    setNear(next) {
      isNear = next;
      if (isNear && isStale) draw();
    },
    forget: (run) => curves[run].detail.forget(),
    points: (run) => curves[run].data[spec.key],
    close: () => window.Plotly.purge(plot),
  };
}

// Text for a hover template of Plotly, which reads tags and %{...}. Names of runs come from users.
const plain = (label) => label.replace(/[<>&%{}]/g, " ");
