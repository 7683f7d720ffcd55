// The table of legal plans. Only the rows in view are in the document, so an edit costs the same for 20 rows and for
// 300.
import { fill, h } from "../lib/dom.js";
import { gib, grouped, percent, rounded } from "../lib/format.js";
import { sentences, t } from "../lib/words.js";
import { range } from "./accuracy.js";
import { choosePlan, isSettled } from "./choices.js";
import { atRest } from "./draft.js";
import { meter } from "./meter.js";
import { planName, recompute } from "./plan_words.js";
import { drawProblem } from "./problems.js";
import { whyNot } from "./why_not.js";

const ROW = 36, SPARE = 6;
const SIZES = ["tensor", "pipeline", "virtual_pipeline", "context", "expert", "expert_tensor"];
const ALWAYS = new Set(["tensor", "pipeline"]);
const FILTERS = ["fits", "engine", "front", "loads"];
const NOTICED = 0.005;
const WRONG = new Set(["vision_gradients_wrong", "vision_replicas_drift", "deep_stack_gradients_wrong"]);
const filters = new Set();
let all = [], rows = [], columns = [], plans = null, chosen = null, place = null;
// `at` is the scroll position, `top` the position to scroll to, and `height` the height of the box. Reading them from
// the box after a change would force another layout of the page.
let at = 0, top = 0, height = 0;

export function draw(element, payload) {
  if (element !== place) build(element);
  if (!payload.data.plans) return;
  plans = payload.data.plans;
  const part = (name) => element.querySelector(`.mb-plans-${name}`);
  const isListed = plans.own !== null && plans.own !== undefined;
  part("why").textContent = plans.why;
  part("instead").textContent = plans.instead ?? "";
  part("loads").textContent = plans.loads ?? "";
  part("filters").lastChild.hidden = !plans.loads;
  part("else").hidden = !plans.rows.length || isListed;
  for (const name of ["box", "count", "filters", "ask"]) part(name).hidden = !plans.rows.length;
  part("cost").hidden = part("use").hidden = true;
  if (!plans.rows.length) return;
  all = plans.rows.map(named);
  const before = chosen && keyOf(chosen);
  if (isSettled()) chosen = all.find((row) => row.rank === plans.own) || null;
  else if (chosen) chosen = all.find((row) => keyOf(row) === before) || chosen;
  // The row at the scroll position is no longer listed.
  if (before && !chosen) top = 0;
  // If the speed is unknown, the sentence above the table explains the order.
  part("count").textContent = t("wizard.plan.count", { shown: grouped(all.length), count: grouped(plans.count),
    fitting: grouped(plans.surely_fitting), sorted: all[0].speed === null ? "" : t("wizard.plan.sorted") });
  showWarning(part("even"), payload.problems.find(({ code }) => WRONG.has(code) || code === "stages_unequal"));
  // At first the best plans are in view, as the sentences above say.
  sift(before && chosen && keyOf(chosen) !== before);
}

function named(values) {
  const row = {};
  plans.keys.forEach((key, index) => { row[key] = values[index]; });
  return row;
}

const keyOf = (row) => plans.keys.slice(0, plans.keys.indexOf("rank")).map((name) => row[name]).join("|");

// Applies the filters, and chooses the columns whose values differ between rows.
function sift(isMoved) {
  const engine = chosen?.engine ?? all[0].engine;
  rows = all.filter((row) => (!filters.has("fits") || row.rank < plans.surely_fitting) && (!filters.has("engine") || row.engine === engine)
    && (!filters.has("front") || row.marks.includes("p")) && (!filters.has("loads") || !row.marks.includes("x")));
  const differs = (name) => new Set(all.map((row) => row[name])).size > 1;
  columns = [all.some((row) => row.marks) && "marks", differs("engine") && "engine",
    ...SIZES.filter((name) => ALWAYS.has(name) || all.some((row) => row[name] > 1)), "data", "micro_batch",
    "accumulation", "recompute", "memory", "bubble", ...(all[0].speed === null ? [] : ["exposed", "speed"]),
    all.some((row) => row.hours !== null) && "hours"].filter(Boolean);
  header();
  if (isMoved && height) bringIntoView();
  paint();
}

function bringIntoView() {
  const index = rows.indexOf(chosen);
  if (index < 0) return;
  if (index * ROW < top) top = index * ROW;
  else if ((index + 2) * ROW > top + height) top = ROW * Math.ceil(((index + 2) * ROW - height) / ROW);
}

// Handles that the box was scrolled, became visible or changed its size.
function onScroll() {
  const box = place.querySelector(".mb-plans-box");
  if (!box.clientHeight || (box.scrollTop === at && box.clientHeight === height)) return;
  at = top = box.scrollTop;
  height = box.clientHeight;
  paint();
}
const resized = new ResizeObserver(onScroll);

function build(element) {
  place = element;
  const grid = { class: "mb-plans", role: "grid", tabindex: "0", "aria-label": t("wizard.plans"), onkeydown: onKey };
  const table = h("table", grid, h("thead", {}), h("tbody", { onclick: onClick }));
  const use = h("button.mb-apply.mb-plans-use", { type: "button", hidden: true, onclick: () => choose(best()) });
  fill(element, h("p.mb-plans-note.mb-plans-why", {}),
    h("p.mb-plans-note", {}, h("span.mb-plans-instead", {}), " ", use),
    h("p.mb-plans-loads", {}),
    h("p.mb-plans-else.mb-problem", { "data-severity": "warning" }, t("wizard.plan.elsewhere")),
    h("div.mb-plans-filters", {}, FILTERS.map(filter)),
    h("div.mb-plans-box", { onscroll: () => requestAnimationFrame(onScroll) }, table),
    h("p.mb-plans-cost", { "aria-live": "polite" }), h("div.mb-plans-even", {}),
    h("p.mb-plans-count.mb-quiet", {}),
    whyNot());
  at = top = height = 0;
  resized.disconnect();
  resized.observe(element.querySelector(".mb-plans-box"));
}

function filter(name) {
  const box = h("input", { type: "checkbox", onchange: () => {
    filters[box.checked ? "add" : "delete"](name);
    top = 0;
    sift();
  } });
  return h("label", {}, box, t(`wizard.plan.only.${name}`));
}

function header() {
  const names = columns.map((name) => [t(`wizard.column.${name}`), t(`wizard.column.${name}.long`)]);
  const cells = names.map(([short, long], index) => h("th", { scope: "col", role: "columnheader", title: long,
    class: classOf(columns[index]) }, short));
  const head = place.querySelector("thead");
  if (head.dataset.names !== columns.join()) fill(head, h("tr", { role: "row" }, cells));
  head.dataset.names = columns.join();
  place.querySelector("table").setAttribute("aria-rowcount", String(rows.length + 1));
}

const classOf = (name) => ({ memory: "mb-wide", engine: "mb-text", recompute: "mb-text", marks: "mb-marks" })[name];

function paint() {
  if (!plans?.rows.length) return;
  const box = place.querySelector(".mb-plans-box"), body = place.querySelector("tbody");
  const most = Math.ceil((height || 400) / ROW) + 2 * SPARE;
  const first = Math.max(0, Math.min(Math.floor(top / ROW) - SPARE, rows.length - most));
  const last = Math.min(rows.length, first + most);
  body.replaceChildren(space(first), ...rows.slice(first, last).map((row, index) => line(row, first + index)),
    space(rows.length - last));
  if (top !== at) at = box.scrollTop = top;
  const index = rows.indexOf(chosen), table = place.querySelector("table");
  if (index >= first && index < last) table.setAttribute("aria-activedescendant", `plan-${index}`);
  else table.removeAttribute("aria-activedescendant");
  const costLine = place.querySelector(".mb-plans-cost");
  offer(place.querySelector(".mb-plans-use"));
  const cost = chosen ? costOf(chosen) : "", words = cost && t("wizard.plan.cost", { cost });
  costLine.hidden = !cost;
  if (costLine.textContent !== words) costLine.textContent = words;
}

// The button chooses the recommended plan, or the next plan that the checkpoint can be loaded into.
const best = () => all.find((row) => row.rank >= plans.recommended && row.fits && row.speed !== null
  && !row.marks.includes("x"));

function offer(button) {
  const row = best();
  button.hidden = !row || row === chosen;
  const words = row && t("wizard.plan.ask.choose", { plan: planName(row) });
  if (row && button.textContent !== words) button.textContent = words;
}

const space = (count) => h("tr", { "aria-hidden": "true", style: { height: `${count * ROW}px` } });

function line(row, index) {
  return h("tr", { role: "row", id: `plan-${index}`, "data-index": index, "aria-rowindex": index + 2,
      "aria-selected": String(row === chosen), title: costOf(row),
      class: [row.fits === false && "mb-over", row.marks.includes("x") && "mb-unfit"].filter(Boolean).join(" ") || null },
    columns.map((name) => h("td", { role: "gridcell", class: classOf(name) ?? (row[name] === 1
      && SIZES.includes(name) ? "mb-one" : null) }, cell(row, name))));
}

function cell(row, name) {
  if (name === "memory") return meter(row.need_gib, ends(row, "memory", row.need_gib), plans.gpu_gib,
    verdict(row), isOver(row));
  if (name === "engine") return t(`wizard.engine.${row.engine}`);
  if (name === "recompute") return recompute(row);
  if (name === "bubble" || name === "exposed") return percent(row[name]);
  if (name === "speed") return rounded(row.speed);
  if (name === "hours") return row.hours === null ? "–" : range(...ends(row, "hours", row.hours));
  if (name === "marks") return [row.marks.includes("x") && h("span", { title: t("wizard.plan.mark.unfit") }, "⊘"),
    row.marks.includes("p") && h("span", { title: t("wizard.plan.mark.front") }, "◆")];
  return String(row[name]);
}

// The 80 % interval of a row's figure; null if the figure is assumed. An unknown lower end is null.
const ends = (row, name, value) => plans.intervals[row.engine][name]?.map((factor) => factor && factor * value) ?? null;

const isOver = (row) => !row.fits && row.need_gib > plans.possible_gib[row.engine];
function verdict(row) {
  if (isOver(row)) return "wizard.over";
  if (row.over_host > 0) return "wizard.over.host";
  return row.need_gib > plans.doubtful_gib[row.engine] ? "wizard.near" : "wizard.fits";
}

function costOf(row) {
  const costs = [];
  if (row.marks.includes("x")) costs.push(t("wizard.plan.mark.unfit"));
  if (isOver(row)) costs.push(t("wizard.plan.cost.over", { gib: gib(row.need_gib - plans.gpu_gib) }));
  if (row.over_host > 0) costs.push(t("wizard.plan.cost.over_host", { gib: gib(row.over_host) }));
  const first = verdict(row) === "wizard.near" ? "wizard.plan.cost.fastest" : "wizard.plan.cost.best";
  if (row.rank === 0) costs.push(t(row.fits ? first : "wizard.plan.cost.closest"));
  // If nothing fits, the speed of the closest plan is no measure.
  else if (plans.fitting && row.slower !== null) costs.push(paceOf(row));
  const less = all[0].need_gib - row.need_gib;
  if (row.account_for_embedding || row.account_for_loss) costs.push(t("wizard.plan.cost.accounts"));
  if (row.pipeline_layout) costs.push(t("wizard.plan.cost.layout", { layout: row.pipeline_layout }));
  if (row.fits && row.rank !== 0 && Math.abs(less) >= 0.05) costs.push(t(less > 0 ? "wizard.plan.cost.less"
    : "wizard.plan.cost.more", { gib: gib(Math.abs(less)) }));
  return sentences(costs);
}

function paceOf({ slower, part }) {
  if (slower > NOTICED) return t("wizard.plan.cost.slower", { percent: percent(slower), part: t(`advice.part.${part}`) });
  return slower < -NOTICED ? t("wizard.plan.cost.faster", { percent: percent(-slower) }) : t("wizard.plan.cost.same");
}

// A warning if the draft's plan trains something incorrectly or its stages wait for each other. The fields to fix are
// closed at first.
function showWarning(element, note) {
  const text = note ? JSON.stringify(note) : "";
  if (element.dataset.text === text) return;
  element.dataset.text = text;
  element.replaceChildren(...(note ? [drawProblem(note)] : []));
}

// A chosen row is sent again, too, because another page may have edited the draft since.
function take(row, isRepeated) {
  if (!row || (row === chosen && isRepeated)) return;
  chosen = row;
  bringIntoView();
  paint();
  choosePlan(row, plans.keeps_batch);
}

function takeSame(row) {
  const key = row && keyOf(row);
  atRest(() => take(all.find((other) => keyOf(other) === key)));
}

function onClick(event) {
  const line = event.target.closest("[data-index]");
  if (!line) return;
  choose(rows[Number(line.dataset.index)]);
}

// After a click, the arrow keys continue from the row.
function choose(row) {
  place.querySelector("table").focus({ preventScroll: true });
  takeSame(row);
}

function onKey(event) {
  const page = Math.floor(height / ROW) - 2, { key, repeat } = event;
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
  if (!(key in steps)) return;
  event.preventDefault();
  atRest(() => {
    const to = rows.indexOf(chosen) + steps[key];
    take(rows[Math.max(0, Math.min(rows.length - 1, to))], repeat);
  });
}
