// The help beside a field: a button that opens the meaning of the parameter and the effects of other values on this
// job. The page requests it when it is opened, never with an edit.
import { fill, h, table } from "../lib/dom.js";
import { gib, percent, rounded } from "../lib/format.js";
import { lang, t } from "../lib/words.js";
import { sendToServer } from "./channel.js";

const PREFIX = "field-", WIDTH = 600, GAP = 8, BUTTON = 20;
const pathOf = (block) => block.id.slice(PREFIX.length).replaceAll("-", ".");

// The browser itself opens and closes a popover by its button, and closes it on Escape and on a click elsewhere.
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
  load(box, block);
}

async function load(box, block) {
  let help = null;
  try {
    const answer = await fetch(`/api/help?path=${pathOf(block)}&lang=${lang()}`);
    help = answer.ok ? await answer.json() : null;
  } catch { /* said below */ }
  if (!isOpen(box)) return;
  fillIn(box, block, help ?? { failed: true });
  place(box, block);
}

const isOpen = (box) => box.matches(":popover-open");

// The help is beside its field if there is room, else below it. It scrolls with the page.
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

function fillIn(box, block, help) {
  const head = h("div.mb-help-head", {}, h("h4", { id: `${block.id}-help` }, help?.name ?? labelOf(block)),
    h("code", {}, help?.path ?? pathOf(block)),
    h("button.mb-tool", { type: "button", onclick: () => box.hidePopover() }, t("wizard.help.close")));
  if (!help || help.failed)
    return fill(box, head, h("p.mb-quiet", { role: "status" }, t(`wizard.help.${help ? "failed" : "asking"}`)));
  fill(box, head, h("p", {}, help.meaning), list(help.facts),
    help.rows.length > 0 && figures(help, (row) => choose(row, box, block)),
    help.why && h("p.mb-quiet", {}, help.why),
    help.guides && h("div.mb-help-guides", {}, h("b", {}, t("wizard.help.guides")), " ", help.guides),
    list(help.effects), help.names.length > 0 && names(help.names),
    list([...help.values, ...keysOf(help.keys)], "mb-help-small"));
}

const list = (pairs, classes) => pairs.length > 0 && h("dl", { class: classes }, pairs.map(([name, words]) =>
  h("div", {}, h("dt", {}, name), h("dd", {}, words))));

const names = (known) => h("details.mb-help-names", {},
  h("summary", {}, t("wizard.help.names", { count: known.length })),
  list(known.map(([name, words]) => [h("code", {}, name), words])));

function keysOf(keys) {
  const readers = [...new Set(keys.map(([reader]) => reader))];
  return readers.map((reader) => [reader, keys.filter(([name]) => name === reader)
    .map(([, name, since], index) => [index ? ", " : "", h("code", {}, name), since ? ` (${since})` : ""])]);
}

function figures(help, use) {
  const own = help.rows.find((row) => row.own);
  const head = ["value", ...help.columns].map((name) => t(`wizard.help.column.${name}`));
  const rows = help.rows.map((row) => [named(row), ...cells(row, own, help.columns, use)]);
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

// Returns the change against the present value: a difference for GiB and points, a share for speeds.
function change(name, value, own) {
  const by = name === "speed" ? 100 * (value / own - 1) : name === "bubble" ? 100 * (value - own) : value - own;
  const text = Math.abs(by).toFixed(1);
  if (name === "batch" || value === null || !own && name === "speed" || text === "0.0") return null;
  return h("small", {}, `${by < 0 ? "−" : "+"}${text}${name === "speed" ? "%" : ""}`);
}

// The figures are those of the changed job, so the page requests them again after the change is drawn.
function choose(row, box, block) {
  document.addEventListener("megaboard:drawn", () => isOpen(box) && load(box, block), { once: true });
  sendToServer("apply", { edits: row.edits });
  box.focus();
}

// The help closes when the user turns to another step.
const close = () => document.querySelector(".mb-help:popover-open")?.hidePopover();

document.addEventListener("megaboard:drawn", addButtons);
document.addEventListener("megaboard:show", close);
