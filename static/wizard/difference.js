// The differences of the draft to an earlier run or to the recommended plan. The page requests them when it draws
// Review.
import { fill, h, table } from "../lib/dom.js";
import { gib, percent, rounded, short } from "../lib/format.js";
import { lang, t } from "../lib/words.js";
import { range } from "./accuracy.js";

let section = null, requestedAt = 0, base = "", shownFile = null;

// The element stays for the life of the page: a payload without changes keeps the choice and the scroll position.
export function difference(payload) {
  section ??= h("section.mb-card.mb-section.mb-difference", {}, h("p.mb-quiet", {},
    t("wizard.difference.asking")));
  if (payload.at !== requestedAt) load(payload.at);
  return section;
}

async function load(at) {
  const own = (requestedAt = at);
  let result = null;
  try {
    const answer = await fetch(`/api/difference?base=${encodeURIComponent(base)}&lang=${lang()}`);
    result = answer.ok ? await answer.json() : null;
  } catch { /* said below */ }
  if (own !== requestedAt) return;
  const text = JSON.stringify(result);
  if (section.dataset.text === text) return;
  section.dataset.text = text;
  draw(result);
}

function draw(result) {
  fill(section, h("h3", {}, t("wizard.difference")),
    result?.bases.length > 0 && choice(result),
    h("div.mb-difference-told", { role: "status" }, body(result)));
}

function choice(result) {
  const option = (key, index) => h("option", { value: key, selected: key === result.base }, key === "recommended"
    ? t("wizard.difference.recommended") : index === 0 && result.same_name ? t("wizard.difference.last", { run: key }) : key);
  return h("label.mb-pick", {}, h("span", {}, t("wizard.difference.base")),
    h("select", { id: "mb-difference-base", onchange: (event) => {
      base = event.target.value;
      load(requestedAt);
    } }, result.bases.map(option)));
}

function body(result) {
  if (!result || result.why) return h("p.mb-quiet", {}, result?.why ?? t("wizard.plan.ask.failed"));
  if (!result.fields.length && !result.files.length) return h("p.mb-quiet", {}, t("wizard.difference.none"));
  const before = result.base === "recommended" ? "recommended" : "before";
  return [figures(result.figures, before), fields(result.fields, before), result.files.length > 0 && files(result)];
}

/** @type {[string, (side: any) => any, ((value: any) => string)?][]} */
const FIGURES = [
  ["plan", (side) => side.plan],
  ["batch", (side) => side.batch, rounded],
  ["need_gib", (side) => side.need_gib, short],
  ["bubble", (side) => side.bubble, (value) => percent(value)],
  ["speed", (side) => side.speed, rounded],
  ["iteration_s", (side) => side.iteration_s, short],
  ["hours", (side) => side.hours, short],
];

// The interval of a figure. A figure without one, such as an assumed need, stands for itself.
export const figureText = (side, name, value, write = (plain) => String(plain)) => value === null ? "–"
  : side[`${name}_high`] == null ? write(value) : range(side[`${name}_low`], side[`${name}_high`], write);

// Estimates of both sides with today's formulas, so that only the jobs differ.
function figures({ before, after }, name) {
  if (!before || !after) return h("p.mb-quiet", {}, t("wizard.difference.unestimated"));
  const rows = FIGURES.filter(([, take]) => take(before) !== null || take(after) !== null)
    .map(([name, take, write]) => [h("th", { scope: "row" }, t(`wizard.difference.${name}`)),
      ...[before, after].map((side) => h("td.mb-figure", {}, figureText(side, name, take(side), write))),
      h("td.mb-figure", {}, change(name, take(before), take(after)))]);
  return table("mb-table mb-difference-figures", heads("figure", name, "after", "change"), rows,
    t("wizard.difference.figures"));
}

function change(name, old, now) {
  if (old === now) return "=";
  if (typeof old !== "number" || typeof now !== "number") return "";
  if (name === "need_gib" && gib(old) === gib(now)) return "=";
  const sign = now > old ? "+" : "−";
  if (name === "need_gib") return `${sign}${gib(Math.abs(now - old))} GiB`;
  if (name === "bubble")
    return t("wizard.difference.points", { points: `${sign}${(100 * Math.abs(now - old)).toFixed(1)}` });
  return old ? `${sign}${rounded(100 * Math.abs(now / old - 1))}%` : "";
}

function heads(...names) {
  const isFigure = names[0] === "figure";
  return names.map((name, index) => h("th", { scope: "col", class: isFigure && index ? "mb-figure" : null },
    t(`wizard.difference.column.${name}`)));
}

function fields(rows, name) {
  if (!rows.length) return null;
  const value = (text, kind) => h("td", {}, text === "" ? "–" : h("code.mb-diff", { "data-kind": kind }, text));
  return table("mb-table mb-difference-fields", heads("field", name, "after"),
    rows.map(([path, label, old, now]) => [h("th", { scope: "row" }, label || path, label && h("small", {}, path)),
      value(old, "removed"), value(now, "added")]), t("wizard.difference.fields", { count: rows.length }));
}

function files(result) {
  if (!result.files.some((file) => file.name === shownFile)) shownFile = result.files[0].name;
  const file = result.files.find(({ name }) => name === shownFile);
  const kind = (line) => ({ "+": "added", "-": "removed", "@": "place" })[line[0]];
  return h("div.mb-difference-files", {}, h("h4", {}, t("wizard.difference.files")),
    h("div.mb-choice", { role: "group" }, result.files.map(({ name }) => h("button", { type: "button",
      "aria-pressed": String(name === shownFile), onclick: () => { shownFile = name; draw(result); } }, name))),
    h("pre.mb-code", { role: "group", tabindex: "0", "aria-label": file.name }, file.lines.map((line) =>
      h("span.mb-diff", { "data-kind": kind(line) }, `${line}\n`))));
}
