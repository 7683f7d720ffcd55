// The plans of the table as points, memory against speed: the front, the GPU's limit, the chosen plan. A click chooses.
import { fill, h, table } from "../lib/dom.js";
import { gib, rounded } from "../lib/format.js";
import { lang, t } from "../lib/words.js";
import { choosePlan } from "./choices.js";
import { atRest } from "./draft.js";
import { planName, recompute } from "./plan_words.js";

const LEFT = 64, RIGHT = 20, TOP = 18, BOTTOM = 44, HEIGHT = 380, NEAR = 14, BEYOND = 1.3, FEWEST = 20;
const COLOURS = { megatron: "--mb-c0", zero2: "--mb-c4", zero3: "--mb-c2", fsdp: "--mb-c1", ddp: "--mb-c3" };
const familyOf = (engine) => engine.replace(/^.*?-/, "").replace("-offload", "");
let shown = null;

export function draw(element, bundle) {
  const plans = bundle.data.plans;
  const isOpen = element.querySelector(".mb-twin")?.open;
  shown = null;
  if (!plans?.rows.length) return fill(element, h("p.mb-quiet", {}, plans?.why ?? t("wizard.plan.unread")));
  const rows = plans.rows.map((row) => Object.fromEntries(plans.keys.map((key, at) => [key, row[at]])));
  const timed = rows.filter((row) => row.speed !== null);
  if (!timed.length) return fill(element, h("p.mb-quiet", {}, t("wizard.time.unknown")));
  const most = farthest(timed, plans.gpu_gib), inView = timed.filter((row) => row.need_gib <= most);
  const front = timed.filter((row) => row.marks.includes("p")).sort((a, b) => a.need_gib - b.need_gib);
  const canvas = h("canvas.mb-pareto", { role: "img", onmousemove: hover, onmouseleave: hover, onclick: pick,
    "aria-label": t("wizard.pareto.spoken", { count: inView.length, front: front.length }) });
  const families = [...new Set(timed.map((row) => familyOf(row.engine)))];
  fill(element,
    h("p.mb-quiet", {}, t("wizard.pareto.lead")),
    h("div.mb-legend", { "aria-hidden": "true" }, families.length > 1 && families.map((one) => h("span", {},
      h("i.mb-dot", { style: { "--mb-term": `var(${COLOURS[one]})` } }), t(`wizard.pareto.${one}`))),
      h("span", {}, h("i.mb-dot.mb-hollow", {}), t("wizard.pareto.over")),
      plans.loads && h("span", {}, h("b", {}, "✕"), t("wizard.pareto.unfit")),
      h("span", {}, h("i.mb-line", {}), t("wizard.pareto.front"))),
    h("div.mb-timeline-box", {}, canvas, h("div.mb-tip", { hidden: true })),
    timed.length > inView.length && h("p.mb-quiet.mb-timeline-how", {},
      t("wizard.pareto.beyond", { count: timed.length - inView.length, gib: gib(most) })),
    twin(front, plans, isOpen));
  shown = { plans, canvas, most, rows: inView, front, own: rows.find((row) => row.rank === plans.own) };
  watch.disconnect();
  watch.observe(canvas.parentElement);
}
// A little beyond the limit; where hardly a plan is there, as far as some are.
function farthest(rows, limit) {
  const needs = rows.map((row) => row.need_gib).sort((a, b) => a - b);
  return Math.max(BEYOND * limit, 1.05 * needs[Math.min(FEWEST, needs.length) - 1]);
}
const watch = new ResizeObserver(() => shown?.canvas.isConnected && paint(shown));

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

function paint(view) {
  const { canvas, most, rows, front, own } = view;
  const width = canvas.parentElement.clientWidth, dots = window.devicePixelRatio || 1;
  if (!width) return;
  canvas.width = width * dots;
  canvas.height = HEIGHT * dots;
  canvas.style.height = `${HEIGHT}px`;
  const pen = canvas.getContext("2d"), style = getComputedStyle(canvas);
  const ink = (name) => style.getPropertyValue(name).trim();
  pen.scale(dots, dots);
  pen.font = `12px ${style.fontFamily}`;
  const fastest = 1.08 * Math.max(...rows.map((row) => row.speed));
  view.x = (gib) => LEFT + (width - LEFT - RIGHT) * gib / most;
  view.y = (speed) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * speed / fastest;
  grid(pen, view, width, most, fastest, ink);
  limit(pen, view, ink);
  line(pen, view, front.filter((row) => row.need_gib <= most), ink);
  // The best are drawn last, so that they lie on top.
  for (const row of [...rows].reverse()) dot(pen, view, row, ink);
  if (own && own.speed !== null && own.need_gib <= most) ring(pen, view, own, width, ink);
}

function stepOf(most, count) {
  const rough = most / count, power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
}

function grid(pen, view, width, most, fastest, ink) {
  const bottom = HEIGHT - BOTTOM;
  pen.fillStyle = ink("--body-text-color-subdued");
  pen.strokeStyle = ink("--border-color-primary");
  pen.lineWidth = 1;
  const stroke = (x1, y1, x2, y2) => {
    pen.beginPath();
    pen.moveTo(x1, y1);
    pen.lineTo(x2, y2);
    pen.stroke();
  };
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  const rise = stepOf(fastest, 6);
  for (let speed = 0; speed <= fastest; speed += rise) {
    const y = Math.round(view.y(speed)) + 0.5;
    stroke(LEFT, y, width - RIGHT, y);
    pen.fillText(speed.toLocaleString("en"), LEFT - 8, y);
  }
  pen.textAlign = "center";
  pen.textBaseline = "top";
  for (let gib = 0; gib <= most; gib += stepOf(most, 8)) pen.fillText(String(gib), view.x(gib), bottom + 6);
  pen.fillText(t("wizard.pareto.x"), (LEFT + width - RIGHT) / 2, bottom + 24);
  pen.save();
  pen.translate(10, (TOP + bottom) / 2);
  pen.rotate(-Math.PI / 2);
  pen.textBaseline = "middle";
  pen.fillText(t("wizard.pareto.y"), 0, 0);
  pen.restore();
}

function limit(pen, view, ink) {
  const x = view.x(view.plans.gpu_gib);
  pen.strokeStyle = pen.fillStyle = ink("--mb-bad");
  pen.lineWidth = 2;
  pen.setLineDash([5, 4]);
  pen.beginPath();
  pen.moveTo(x, TOP - 6);
  pen.lineTo(x, HEIGHT - BOTTOM);
  pen.stroke();
  pen.setLineDash([]);
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  pen.fillText(t("wizard.memory.limit", { gib: gib(view.plans.gpu_gib) }), x + 8, TOP);
}

function line(pen, view, front, ink) {
  pen.strokeStyle = ink("--body-text-color-subdued");
  pen.lineWidth = 1.5;
  pen.beginPath();
  front.forEach((row, at) => {
    if (at) pen.lineTo(view.x(row.need_gib), view.y(front[at - 1].speed));
    pen[at ? "lineTo" : "moveTo"](view.x(row.need_gib), view.y(row.speed));
  });
  pen.stroke();
}

function dot(pen, view, row, ink) {
  const onFront = row.marks.includes("p"), x = view.x(row.need_gib), y = view.y(row.speed), size = onFront ? 5 : 3.5;
  pen.beginPath();
  if (isUnfit(row)) cross(pen, x, y, size);
  else pen.arc(x, y, size, 0, 2 * Math.PI);
  pen.strokeStyle = pen.fillStyle = ink(COLOURS[familyOf(row.engine)] ?? "--mb-c9");
  pen.globalAlpha = onFront ? 1 : 0.55;
  pen.lineWidth = 1.5;
  if (row.fits && !isUnfit(row)) pen.fill();
  else pen.stroke();
  pen.globalAlpha = 1;
}

function cross(pen, x, y, size) {
  for (const rise of [1, -1]) {
    pen.moveTo(x - size, y - rise * size);
    pen.lineTo(x + size, y + rise * size);
  }
}

function ring(pen, view, row, width, ink) {
  const x = view.x(row.need_gib), y = view.y(row.speed), text = t("wizard.pareto.chosen", { plan: planName(row) });
  pen.beginPath();
  pen.arc(x, y, 9, 0, 2 * Math.PI);
  pen.strokeStyle = pen.fillStyle = ink("--body-text-color");
  pen.lineWidth = 2.5;
  pen.stroke();
  pen.font = `600 13px ${getComputedStyle(view.canvas).fontFamily}`;
  const isRight = x + 20 + pen.measureText(text).width < width;
  pen.textAlign = isRight ? "left" : "right";
  pen.textBaseline = "middle";
  const at = [isRight ? x + 15 : x - 15, y + (y < TOP + 30 ? 16 : -12)];
  pen.lineWidth = 4;
  pen.lineJoin = "round";
  pen.strokeStyle = ink("--background-fill-primary");
  pen.strokeText(text, ...at);
  pen.fillText(text, ...at);
}

function nearest({ offsetX, offsetY }) {
  let best = null, least = NEAR;
  for (const row of shown?.rows ?? []) {
    const away = Math.hypot(shown.x(row.need_gib) - offsetX, shown.y(row.speed) - offsetY);
    if (away < least) [best, least] = [row, away];
  }
  return best;
}

function hover(event) {
  const box = event.currentTarget.parentElement, tip = box.querySelector(".mb-tip");
  const row = event.type === "mousemove" ? nearest(event) : null;
  event.currentTarget.style.cursor = row ? "pointer" : "";
  tip.hidden = !row;
  if (!row) return;
  tip.textContent = details(row);
  tip.style.left = `${Math.max(0, Math.min(shown.x(row.need_gib) + 14, box.clientWidth - tip.offsetWidth))}px`;
  tip.style.top = `${shown.y(row.speed) + 14}px`;
}

function pick(event) {
  const row = nearest(event);
  if (row) take(row, shown.plans);
}

// As the table does; which may not have been drawn yet.
const take = (row, plans) => atRest(() => choosePlan(row, plans.keeps_batch));
