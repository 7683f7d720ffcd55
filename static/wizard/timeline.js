// The schedule of the pipeline: one row per stage, one box per pass. The gaps between the boxes are the bubble.
import { fill, h, table } from "../lib/dom.js";
import { percent } from "../lib/format.js";
import { sentences, t } from "../lib/words.js";
import { insteadOfFigures } from "./problems.js";
import { BREAK, layoutOf, NAME, passesOf, SIDE, TOP } from "./timeline_layout.js";

let shown = null, boxes = [];

export function draw(element, payload) {
  const plan = payload.data.schedule;
  const isOpen = element.querySelector(".mb-twin")?.open;
  shown = null;
  if (!plan || plan.stages === 1) {
    const why = !plan ? "unread" : !plan.has_stages ? "no_stages" : plan.is_known ? "one_stage" : "unknown";
    return fill(element, h("p.mb-quiet", {}, insteadOfFigures(payload, `wizard.schedule.${why}`)));
  }
  const canvas = h("canvas.mb-timeline", { role: "img", "aria-label": spoken(plan),
    onmousemove: hover, onmouseleave: hover });
  fill(element,
    h("p.mb-bubble", {}, h("strong", {}, percent(plan.bubble)), ` ${sentence(plan)}`),
    h("div.mb-legend", { "aria-hidden": "true" }, legend(plan)),
    h("div.mb-timeline-box", {}, canvas, h("div.mb-tip", { hidden: true })),
    h("p.mb-quiet.mb-timeline-how", {}, how(plan)),
    figures(plan, isOpen));
  shown = { plan, canvas, passes: passesOf(plan) };
  watch.disconnect();
  watch.observe(canvas.parentElement);
}
const watch = new ResizeObserver(() => shown?.canvas.isConnected && paint(shown));

// Words.
const seconds = (value) => value >= 10 ? value.toFixed(1) : value >= 0.1 ? value.toFixed(2) : value.toFixed(3);
const idle = (plan) => plan.busy_s.map((busy) => 1 - busy / plan.total_s);
const slowest = (plan) => plan.busy_s.indexOf(Math.max(...plan.busy_s));
const mean = (list) => list.reduce((sum, value) => sum + value, 0) / list.length;

function sentence(plan) {
  const values = { idle: seconds(plan.bubble * plan.total_s), total: seconds(plan.total_s),
    textbook: percent(plan.textbook), doubled: percent(plan.doubled), count: plan.micro_batches,
    twice: 2 * plan.micro_batches, stage: slowest(plan),
    more: percent(Math.max(...plan.busy_s) / mean(plan.busy_s) - 1) };
  const isUneven = plan.bubble > plan.textbook + 0.002;
  const why = values.stage === 0 && plan.has_tower ? "tower" : values.stage === plan.stages - 1 ? "head" : null;
  return sentences([t("wizard.schedule.bubble", values), t(`wizard.schedule.${isUneven ? "uneven" : "even"}`, values),
    isUneven && why && t(`wizard.schedule.${why}`), t("wizard.schedule.doubled", values)]);
}

function how(plan) {
  const kind = t(plan.virtual > 1 ? "wizard.schedule.interleaved" : "wizard.schedule.plain", { chunks: plan.virtual });
  return sentences([kind, plan.left_out && t("wizard.schedule.cut", { count: plan.left_out })]);
}

function spoken(plan) {
  return t("wizard.schedule.spoken", { stages: plan.stages, count: plan.micro_batches,
    bubble: percent(plan.bubble), idle: idle(plan).map((share, stage) =>
      t("wizard.schedule.spoken.stage", { stage, idle: percent(share) })).join(", ") });
}

function legend(plan) {
  const swatch = (kind, chunk) => h("i.mb-swatch", { style: { background: shade(kind, chunk, plan.virtual) } });
  const few = Math.min(plan.virtual, 4);
  const item = (kind) => h("span", {}, Array.from({ length: few }, (_, at) =>
    swatch(kind, Math.round(at * (plan.virtual - 1) / Math.max(1, few - 1)))), t(`wizard.schedule.${kind}`));
  return [item("forward"), item("backward"),
    h("span", {}, h("i.mb-swatch.mb-waiting", {}), t("wizard.schedule.waiting"))];
}

function figures(plan, isOpen) {
  const all = (list) => list.reduce((sum, value) => sum + value, 0);
  const head = ["stage", "layers", "forward_s", "backward_s", "busy", "idle", "share"].map((name) =>
    t(`wizard.schedule.column.${name}`));
  const rows = plan.busy_s.map((busy, stage) => [String(stage), String(plan.layers[stage]),
    (1000 * all(plan.forward_s[stage])).toFixed(1), (1000 * all(plan.backward_s[stage])).toFixed(1),
    seconds(busy), seconds(plan.total_s - busy), percent(1 - busy / plan.total_s)]);
  const details = h("details.mb-twin", {}, h("summary", {}, t("wizard.memory.figures")),
    table(null, head, rows, t("wizard.schedule.caption", { total: seconds(plan.total_s) })));
  details.open = Boolean(isOpen);
  return details;
}

function paint({ plan, canvas, passes }) {
  const width = canvas.parentElement.clientWidth, dots = window.devicePixelRatio || 1;
  if (!width) return;
  const at = layoutOf(plan, passes, width), bottom = TOP + plan.stages * at.row;
  canvas.width = width * dots;
  canvas.height = at.height * dots;
  canvas.style.height = `${at.height}px`;
  const pen = canvas.getContext("2d"), ink = colours(canvas);
  pen.scale(dots, dots);
  boxes = at.boxes;
  pen.fillStyle = ink.hatch;
  for (const { left, right, top, bottom } of at.lanes) pen.fillRect(left, top, right - left, bottom - top);
  for (const box of boxes) drawBox(pen, box, ink);
  plan.busy_s.forEach((_, stage) => label(pen, plan, stage, at, width, ink));
  phases(pen, at, ink);
  axis(pen, at, bottom, ink);
  if (plan.left_out) torn(pen, plan, at, TOP, plan.stages * at.row, ink);
}

function drawBox(pen, { pass, number, left, right, top, bottom }, ink) {
  const width = right - left, height = bottom - top, kind = pass.isBackward ? "backward" : "forward";
  pen.fillStyle = ink.fills[kind][pass.chunk];
  pen.fillRect(left, top, Math.max(width - (width > 3 ? 1 : 0), 0.4), height);
  if (width < 7 * String(number).length + 4 || height < 12) return;
  pen.fillStyle = ink.texts[kind][pass.chunk];
  pen.font = `${height > 20 ? 12 : 10}px ${ink.family}`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.fillText(String(number), left + width / 2 - 0.5, top + height / 2 + 0.5);
}

function label(pen, plan, stage, { row, laneHeight }, width, ink) {
  if (row < 14 && stage % 4) return;
  const middle = TOP + stage * row + laneHeight / 2;
  pen.font = `${row > 14 ? 13 : 11}px ${ink.family}`;
  pen.textBaseline = "middle";
  pen.fillStyle = ink.text;
  pen.textAlign = "left";
  pen.fillText(t("wizard.memory.stage", { stage }), 0, middle);
  pen.textAlign = "right";
  pen.fillStyle = ink.quiet;
  pen.fillText(percent(1 - plan.busy_s[stage] / plan.total_s), width, middle);
}

function phases(pen, at, ink) {
  pen.font = `12px ${ink.family}`;
  pen.textBaseline = "middle";
  pen.lineWidth = 1;
  for (const { name, left, right } of at.phases) {
    const text = t(`wizard.schedule.${name}`);
    if (right - left < 4) continue;
    pen.strokeStyle = ink.line;
    pen.beginPath();
    pen.moveTo(left + 1, TOP - 2);
    pen.lineTo(left + 1, TOP - 7);
    pen.lineTo(right - 2, TOP - 7);
    pen.lineTo(right - 2, TOP - 2);
    pen.stroke();
    if (pen.measureText(text).width > right - left + 6) continue;
    pen.fillStyle = ink.quiet;
    pen.textAlign = "center";
    pen.fillText(text, (left + right) / 2, TOP - 15);
  }
  pen.textAlign = "right";
  pen.fillStyle = ink.quiet;
  pen.fillText(t("wizard.schedule.column.share"), at.end + SIDE, TOP - 15);
}

function axis(pen, at, top, ink) {
  pen.font = `11px ${ink.family}`;
  pen.textBaseline = "top";
  pen.textAlign = "center";
  pen.fillStyle = ink.quiet;
  for (const { x, words } of at.ticks) {
    pen.fillRect(x, top, 1, 4);
    pen.fillText(words, Math.max(x, NAME + 12), top + 6);
  }
}

function torn(pen, plan, at, top, tall, ink) {
  const left = at.x(at.cut, false), middle = left + BREAK / 2;
  pen.save();
  pen.translate(middle, top + tall / 2);
  pen.rotate(-Math.PI / 2);
  pen.fillStyle = ink.text;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.font = `12px ${ink.family}`;
  const text = t("wizard.schedule.left_out", { count: plan.left_out });
  pen.fillText(pen.measureText(text).width < tall ? text : `+${plan.left_out}`, 0, 0);
  pen.restore();
  pen.strokeStyle = ink.line;
  pen.setLineDash([3, 3]);
  for (const x of [left + 1.5, left + BREAK - 1.5]) {
    pen.beginPath();
    pen.moveTo(x, top - 4);
    pen.lineTo(x, top + tall);
    pen.stroke();
  }
  pen.setLineDash([]);
}

// Colours: a later chunk is paler. Its number is black or white, whichever has the higher contrast.
const share = (chunk, virtual) => virtual === 1 ? 1 : 1 - 0.62 * chunk / (virtual - 1);
const shade = (kind, chunk, virtual) => `color-mix(in srgb, var(${kind === "forward" ? "--mb-c0" : "--mb-c2"}) `
  + `${Math.round(100 * share(chunk, virtual))}%, var(--background-fill-primary))`;

function colours(canvas) {
  const { plan } = shown, style = getComputedStyle(canvas);
  const probe = h("i", { hidden: true });
  canvas.parentElement.append(probe);
  const resolve = (colour) => {
    probe.style.color = colour;
    return getComputedStyle(probe).color;
  };
  const fills = {}, texts = {};
  for (const kind of ["forward", "backward"]) {
    fills[kind] = Array.from({ length: plan.virtual }, (_, chunk) => resolve(shade(kind, chunk, plan.virtual)));
    texts[kind] = fills[kind].map(readable);
  }
  const line = resolve("var(--body-text-color-subdued)");
  const ink = { fills, texts, line, family: style.fontFamily, text: resolve("var(--body-text-color)"),
    quiet: resolve("var(--body-text-color-subdued)"), hatch: hatch(line, resolve("var(--background-fill-secondary)")) };
  probe.remove();
  return ink;
}

function channels(colour) {
  const numbers = colour.match(/[\d.]+/g).slice(0, 3).map(Number);
  return colour.startsWith("color(") ? numbers : numbers.map((value) => value / 255);
}

function readable(colour) {
  const [red, green, blue] = channels(colour).map((value) => value <= 0.04 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  return 1.05 / (light + 0.05) > (light + 0.05) / 0.06 ? "#fff" : "#111";
}

function hatch(line, ground) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.fillStyle = ground;
  pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = line;
  pen.globalAlpha = 0.45;
  pen.beginPath();
  for (const shift of [-8, 0, 8]) {
    pen.moveTo(shift, 8);
    pen.lineTo(shift + 8, 0);
  }
  pen.stroke();
  return pen.createPattern(tile, "repeat");
}

// Describes the pass under the pointer.
function hover(event) {
  const box = event.currentTarget.parentElement, tip = box.querySelector(".mb-tip");
  const { offsetX: x, offsetY: y } = event;
  const hit = event.type === "mousemove" && boxes.find((box) =>
    x >= box.left && x < box.right && y >= box.top && y < box.bottom);
  tip.hidden = !hit;
  if (!hit) return;
  const { pass } = hit, { plan } = shown, shift = hit.isAfter ? plan.total_s - plan.drawn_s : 0;
  const words = plan.virtual > 1 ? "wizard.schedule.tip.chunk" : "wizard.schedule.tip";
  tip.textContent = t(words, { stage: pass.stage, micro: hit.number, chunk: pass.chunk,
    kind: t(`wizard.schedule.${pass.isBackward ? "backward" : "forward"}`).toLowerCase(),
    from: (pass.start + shift).toFixed(3), to: (pass.end + shift).toFixed(3) });
  tip.style.left = `${Math.max(0, Math.min(x + 12, box.clientWidth - tip.offsetWidth))}px`;
  tip.style.top = `${hit.bottom + 6}px`;
}
