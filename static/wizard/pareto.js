// The plans of the table as points, memory against speed: the Pareto front, the GPU's limit, the chosen plan. A click
// chooses a plan.
import { attribute, fill, h, table } from "../lib/dom.js";
import { gib, rounded } from "../lib/format.js";
import { axis, config, frame, palette, watchPlots } from "../lib/plots.js";
import { lang, t } from "../lib/words.js";
import { choosePlan } from "./choices.js";
import { atRest } from "./draft.js";
import { planName, recompute } from "./plan_words.js";

const NEAR = 14, BEYOND = 1.3, FEWEST = 20;
const COLOURS = { megatron: "--mb-c0", zero2: "--mb-c4", zero3: "--mb-c2", fsdp: "--mb-c1", ddp: "--mb-c3" };
const familyOf = (engine) => engine.replace(/^.*?-/, "").replace("-offload", "");
let shown = null, plot = null, isBound = false;

export function draw(element, payload) {
  const plans = payload.data.plans;
  const isOpen = element.querySelector(".mb-twin")?.open;
  shown = null;
  if (!plans?.rows.length) return fill(element, h("p.mb-quiet", {}, plans?.why ?? t("wizard.plan.unread")));
  const rows = plans.rows.map((row) => Object.fromEntries(plans.keys.map((key, index) => [key, row[index]])));
  const timed = rows.filter((row) => row.speed !== null);
  if (!timed.length) return fill(element, h("p.mb-quiet", {}, t(plans.untimed)));
  const most = farthest(timed, plans.gpu_gib), inView = timed.filter((row) => row.need_gib <= most);
  const front = timed.filter((row) => row.marks.includes("p")).sort((a, b) => a.need_gib - b.need_gib);
  if (!plot) {
    plot = h("div.mb-pareto", { role: "figure" });
    watchPlots([plot], paint);
  }
  attribute(plot, "aria-label", t("wizard.pareto.spoken", { count: inView.length, front: front.length }));
  const families = [...new Set(timed.map((row) => familyOf(row.engine)))];
  fill(element,
    h("p.mb-quiet", {}, t("wizard.pareto.lead")),
    h("div.mb-legend", { "aria-hidden": "true" }, families.length > 1 && families.map((family) => h("span", {},
      h("i.mb-dot", { style: { "--mb-term": `var(${COLOURS[family]})` } }), t(`wizard.pareto.${family}`))),
      h("span", {}, h("i.mb-dot.mb-hollow", {}), t("wizard.pareto.over")),
      plans.loads && h("span", {}, h("b", {}, "✕"), t("wizard.pareto.unfit")),
      h("span", {}, h("i.mb-line", {}), t("wizard.pareto.front"))),
    plot,
    timed.length > inView.length && h("p.mb-quiet.mb-timeline-how", {},
      t("wizard.pareto.beyond", { count: timed.length - inView.length, gib: gib(most) })),
    twin(front, plans, isOpen));
  shown = { plans, most, rows: inView, front, own: rows.find((row) => row.rank === plans.own) };
  paint();
}

// The axis ends a little beyond the limit. If few plans lie below it, the axis extends to some of the others.
function farthest(rows, limit) {
  const needs = rows.map((row) => row.need_gib).sort((a, b) => a - b);
  return Math.max(BEYOND * limit, 1.05 * needs[Math.min(FEWEST, needs.length) - 1]);
}

const isUnfit = (row) => row.marks.includes("x");
const details = (row) => [t("wizard.pareto.tip", { plan: planName(row), batch: row.micro_batch,
  gib: gib(row.need_gib), speed: rounded(row.speed), recompute: recompute(row) }), isUnfit(row) && t("wizard.plan.mark.unfit")]
  .filter(Boolean).join(lang() === "zh" ? "。" : ". ");

function twin(front, plans, isOpen) {
  const head = ["plan", "batch", "recompute", "memory", "speed", "choose"].map((name) => t(`wizard.pareto.${name}`));
  const need = (row) => `${gib(row.need_gib)} GiB${row.fits ? "" : ` (${t("wizard.over")})`}`;
  const lines = front.map((row) => [(isUnfit(row) ? "⊘ " : "") + planName(row), String(row.micro_batch), recompute(row), need(row), rounded(row.speed),
    row.rank === plans.own ? t("wizard.strategies.own")
      : h("button.mb-tool", { type: "button", onclick: () => take(row, plans) }, t("wizard.plan.choose"))]);
  const list = h("details.mb-twin", {}, h("summary", {}, t("wizard.pareto.list")),
    table("mb-front", head, lines, t("wizard.pareto.caption")));
  list.open = Boolean(isOpen);
  return list;
}

function paint() {
  if (!shown || !plot.clientWidth) return;
  const { plans, most, rows, front, own } = shown;
  const fastest = 1.08 * Math.max(...rows.map((row) => row.speed)), colours = palette(plot), style = getComputedStyle(plot);
  const colourOf = (row) => style.getPropertyValue(COLOURS[familyOf(row.engine)] ?? "--mb-c9").trim();
  const isChosenDrawn = own && own.speed !== null && own.need_gib <= most;
  const x = (rows) => rows.map((row) => row.need_gib), y = (rows) => rows.map((row) => row.speed);
  // The best plans are drawn last, so that they lie on top.
  const points = [...rows].reverse(), inFront = front.filter((row) => row.need_gib <= most);
  const mark = (row, whenFront, otherwise) => row.marks.includes("p") ? whenFront : otherwise;
  const traces = [
    { x: x(inFront), y: y(inFront), mode: "lines", hoverinfo: "skip",
      line: { shape: "hv", width: 1.5, color: colours.quiet } },
    { x: x(points), y: y(points), mode: "markers", customdata: points.map((row) => row.rank),
      text: points.map(details), hovertemplate: "%{text}<extra></extra>",
      marker: { color: points.map(colourOf), size: points.map((row) => mark(row, 10, 7)),
        opacity: points.map((row) => mark(row, 1, 0.55)), line: { width: 1.5, color: points.map(colourOf) },
        symbol: points.map((row) => isUnfit(row) ? "x-thin-open" : row.fits ? "circle" : "circle-open") } },
    isChosenDrawn && { x: [own.need_gib], y: [own.speed], mode: "markers", hoverinfo: "skip",
      marker: { symbol: "circle-open", size: 18, color: colours.text, line: { width: 2.5 } } },
  ].filter(Boolean);
  const titled = (words) => ({ ...axis(colours, true), title: { text: words, font: { size: 12, color: colours.quiet }, standoff: 6 } });
  window.Plotly.react(plot, traces, {
    ...frame(colours), hovermode: "closest", hoverdistance: NEAR, uirevision: `${most} ${fastest}`,
    xaxis: { ...titled(t("wizard.pareto.x")), range: [0, most], showgrid: false },
    yaxis: { ...titled(t("wizard.pareto.y")), range: [0, fastest] },
    shapes: [{ type: "line", x0: plans.gpu_gib, x1: plans.gpu_gib, y0: 0, y1: 1, yref: "paper",
      line: { color: colours.bad, width: 2, dash: "dash" } }],
    annotations: [note(t("wizard.memory.limit", { gib: gib(plans.gpu_gib) }), colours.bad,
      { x: plans.gpu_gib, y: 1, yref: "paper", yanchor: "top", xanchor: "left", xshift: 4 }),
    ...(isChosenDrawn ? [chosenNote(own, most, fastest, colours)] : [])],
  }, config());
  if (isBound) return;
  isBound = true;
  plot.on("plotly_click", ({ points: [{ customdata }] }) => take(shown.rows.find((row) => row.rank === customdata), shown.plans));
  plot.on("plotly_hover", () => plot.classList.add("mb-pick"));
  plot.on("plotly_unhover", () => plot.classList.remove("mb-pick"));
}

const note = (text, color, place) => ({ text, showarrow: false, font: { color, size: 12 }, ...place });

function chosenNote(row, most, fastest, colours) {
  const isRight = row.need_gib < 0.6 * most;
  return note(`<b>${t("wizard.pareto.chosen", { plan: planName(row) })}</b>`, colours.text, { x: row.need_gib, y: row.speed,
    xanchor: isRight ? "left" : "right", xshift: isRight ? 12 : -12, yshift: row.speed > 0.9 * fastest ? -18 : 18,
    bgcolor: colours.card });
}

// Chooses a plan without the table, which may not have been drawn yet.
const take = (row, plans) => atRest(() => choosePlan(row, plans.keeps_batch));
