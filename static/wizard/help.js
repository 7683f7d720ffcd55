// The help beside a field: a button that opens what the parameter means and what other values of it do to this job.
// Asked of the server when it is opened, never with an edit.
import { fill, h, table } from "../lib/dom.js";
import { gib, percent, rounded } from "../lib/format.js";
import { lang, t } from "../lib/words.js";
import { sendToServer } from "./channel.js";

const PREFIX = "field-", WIDTH = 600, GAP = 8, BUTTON = 20;
const pathOf = (block) => block.id.slice(PREFIX.length).replaceAll("-", ".");

// The browser itself opens and closes a popover by its button: again, Escape and a click elsewhere close it.
function addButtons() {
  for (const block of document.querySelectorAll(`.block[id^="${PREFIX}"]:not(:has(> .mb-ask))`)) {
    const button = h("button.mb-ask", { type: "button", "aria-haspopup": "dialog",
      "aria-label": t("wizard.help.ask", { name: labelOf(block) }) }, "?");
    const box = h("div.mb-help", { popover: "auto", role: "dialog", tabindex: "-1",
      "aria-labelledby": `${block.id}-help` });
    button.popoverTargetElement = box;
    box.addEventListener("toggle", ({ newState }) => newState === "open" ? opened(box, block) : box.replaceChildren());
    block.append(button, box);
  }
}

const labelOf = (block) => block.querySelector("[data-testid='block-info'], .label-text")?.textContent.trim()
  || pathOf(block);

function opened(box, block) {
  fillIn(box, block, null);
  place(box, block);
  box.focus();
  ask(box, block);
}

async function ask(box, block) {
  let got = null;
  try {
    const answer = await fetch(`/api/help?path=${pathOf(block)}&lang=${lang()}`);
    got = answer.ok ? await answer.json() : null;
  } catch { /* said below */ }
  if (!isOpen(box)) return;
  fillIn(box, block, got ?? { failed: true });
  place(box, block);
}

const isOpen = (box) => box.matches(":popover-open");

// At the side of its field where there is room, else below it; it scrolls with the page.
function place(box, block) {
  const at = block.getBoundingClientRect(), { clientWidth, clientHeight } = document.documentElement;
  const width = Math.min(WIDTH, clientWidth - 2 * GAP);
  box.style.width = `${width}px`;
  const lowest = Math.max(GAP, clientHeight - box.offsetHeight - GAP);
  const sides = [at.right + GAP, at.left - GAP - width];
  const side = sides.find((left) => left >= GAP && left + width <= clientWidth - GAP);
  const left = side ?? Math.max(GAP, Math.min(at.right - width, clientWidth - width - GAP));
  const top = Math.max(GAP, Math.min(side === undefined ? at.top + BUTTON + GAP : at.top, lowest));
  box.style.left = `${left + scrollX}px`;
  box.style.top = `${top + scrollY}px`;
}

function fillIn(box, block, got) {
  const head = h("div.mb-help-head", {}, h("h4", { id: `${block.id}-help` }, got?.name ?? labelOf(block)),
    h("code", {}, got?.path ?? pathOf(block)),
    h("button.mb-tool", { type: "button", onclick: () => box.hidePopover() }, t("wizard.help.close")));
  if (!got || got.failed)
    return fill(box, head, h("p.mb-quiet", { role: "status" }, t(`wizard.help.${got ? "failed" : "asking"}`)));
  fill(box, head, h("p", {}, got.meaning), list(got.facts),
    got.rows.length > 0 && figures(got, (row) => choose(row, box, block)),
    got.why && h("p.mb-quiet", {}, got.why),
    got.guides && h("div.mb-help-guides", {}, h("b", {}, t("wizard.help.guides")), " ", got.guides),
    list(got.effects), got.names.length > 0 && names(got.names),
    list([...got.values, ...keysOf(got.keys)], "mb-help-small"));
}

const list = (pairs, classes) => pairs.length > 0 && h("dl", { class: classes }, pairs.map(([name, words]) =>
  h("div", {}, h("dt", {}, name), h("dd", {}, words))));

const names = (known) => h("details.mb-help-names", {},
  h("summary", {}, t("wizard.help.names", { count: known.length })),
  list(known.map(([name, words]) => [h("code", {}, name), words])));

function keysOf(keys) {
  const readers = [...new Set(keys.map(([reader]) => reader))];
  return readers.map((reader) => [reader, keys.filter(([one]) => one === reader)
    .map(([, name, since], index) => [index ? ", " : "", h("code", {}, name), since ? ` (${since})` : ""])]);
}

function figures(got, use) {
  const own = got.rows.find((row) => row.own);
  const head = ["value", ...got.columns].map((name) => t(`wizard.help.column.${name}`));
  const rows = got.rows.map((row) => [named(row), ...cells(row, own, got.columns, use)]);
  return table("mb-table mb-help-figures", [...head, ""], rows, t("wizard.help.here"));
}

function named(row) {
  return h("th", { scope: "row", "data-own": row.own }, row.value,
    row.own && h("span.mb-best", {}, t("wizard.help.now")));
}

function cells(row, own, columns, choose) {
  if (row.problem) return [h("td.mb-help-refused", { colspan: String(columns.length + 1) }, row.problem)];
  const use = !row.own && h("button.mb-tool", { type: "button",
    "aria-label": t("wizard.help.use.long", { value: row.value }), onclick: () => choose(row) }, t("wizard.help.use"));
  return [...columns.map((name) => h("td", { class: row.over.includes(name) ? "mb-bad" : null },
    SHOWN[name](row[name]), !row.own && change(name, row[name], own[name]),
    row.over.includes(name) && h("small.mb-bad", {}, t("wizard.over")))), h("td", {}, use)];
}

const SHOWN = {
  memory: (value) => `${gib(value)} GiB`,
  speed: (value) => value === null ? "–" : rounded(value),
  bubble: (value) => percent(value),
  host: (value) => value ? `${gib(value)} GiB` : "–",
  batch: (value) => value.toLocaleString("en"),
};

// Against the present value: GiB and points are differences, speeds are shares.
function change(name, value, own) {
  const by = name === "speed" ? 100 * (value / own - 1) : name === "bubble" ? 100 * (value - own) : value - own;
  const text = Math.abs(by).toFixed(1);
  if (name === "batch" || value === null || !own && name === "speed" || text === "0.0") return null;
  return h("small", {}, `${by < 0 ? "−" : "+"}${text}${name === "speed" ? "%" : ""}`);
}

// The figures are those of the changed job, so they are requested again after it is drawn.
function choose(row, box, block) {
  document.addEventListener("megaboard:drawn", () => isOpen(box) && ask(box, block), { once: true });
  sendToServer("apply", { edits: row.edits });
  box.focus();
}

// A step that is left takes its help with it.
const close = () => document.querySelector(".mb-help:popover-open")?.hidePopover();

document.addEventListener("megaboard:drawn", addButtons);
document.addEventListener("megaboard:show", close);
