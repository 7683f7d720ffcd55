// What the page adds to the fields: problems with their fix, counts on the steps, sections that open, and hidden
// fields.
import { h } from "../lib/dom.js";
import { t } from "../lib/words.js";
import { go, steps } from "../web/shell.js";
import { drawProblem, noFigures } from "./problems.js";

const idOf = (path) => `field-${path.replaceAll(".", "-")}`;

export function placeProblems(payload) {
  if (payload.hidden && payload.hidden.join() !== hiddenNow) hide(payload.hidden);
  const byId = new Map();
  for (const problem of payload.problems) {
    const id = idOf(problem.at);
    byId.set(id, [...(byId.get(id) || []), problem]);
  }
  for (const block of document.querySelectorAll('[id^="field-"]')) beside(block, byId.get(block.id) || []);
  unplaced(payload);
  marks(payload);
  openSizes(payload);
}

// Without a table of plans, the user sets the parallel sizes by hand. The section opens once, so that the user can
// close it.
let isByHand = false;
function openSizes(payload) {
  const button = document.querySelector('[data-more="wizard-strategy-more"]');
  if (!button) return;
  const isNow = Boolean(noFigures(payload)) && !button.hasAttribute("data-off");
  if (isNow && !isByHand) open(button, true);
  isByHand = isNow;
}

let hiddenNow = null;
function hide(paths) {
  hiddenNow = paths.join();
  const ids = new Set(paths.map(idOf));
  for (const block of document.querySelectorAll('[id^="field-"]'))
    block.toggleAttribute("data-off", ids.has(block.id));
  document.querySelectorAll(".mb-fields > .form").forEach(balance);
  // A section without fields has no button, for example parallel sizes on an engine without them.
  for (const button of document.querySelectorAll("[data-more]")) {
    const part = document.getElementById(button.dataset.more);
    button.toggleAttribute("data-off", Boolean(part) && !part.querySelector('[id^="field-"]:not([data-off])'));
  }
}

// There are as many columns as fit an engine's name or a problem, but rows have similar lengths: five fields are three
// and two.
const COLUMN = 260, GAP = 20, FEWEST = 3;
function balance(form) {
  const count = [...form.children].filter((child) => !child.hasAttribute("data-off")).length;
  form.parentElement.toggleAttribute("data-off", count === 0);
  watched.observe(form);
  const most = Math.max(1, Math.floor((form.clientWidth + GAP) / (COLUMN + GAP)));
  if (!form.clientWidth || !count) return;
  const columns = Math.min(most, Math.max(FEWEST, Math.ceil(count / Math.ceil(count / most))));
  form.style.setProperty("--columns", columns);
}
const watched = new ResizeObserver((entries) => entries.forEach((entry) => balance(entry.target)));

function beside(block, problems) {
  const text = JSON.stringify(problems);
  let box = block.querySelector(":scope > .mb-beside");
  if (box ? box.dataset.text === text : !problems.length) return;
  box?.remove();
  const input = block.querySelector("input, textarea");
  if (!problems.length) {
    input?.removeAttribute("aria-invalid");
    input?.removeAttribute("aria-describedby");
    return;
  }
  box = h("div.mb-beside", { id: `${block.id}-problems` }, onceFixed(problems).map(drawProblem));
  box.dataset.text = text;
  block.append(box);
  input?.setAttribute("aria-describedby", box.id);
  if (problems.some((problem) => problem.severity === "error")) input?.setAttribute("aria-invalid", "true");
  else input?.removeAttribute("aria-invalid");
}

// Problems with the same fix share one button, below the last of them.
function onceFixed(problems) {
  const fixes = problems.map((problem) => problem.edits && JSON.stringify(problem.edits));
  return problems.map((problem, index) => fixes.indexOf(fixes[index], index + 1) < 0 ? problem
    : { ...problem, edits: null });
}

// A problem of the whole job, or of a field without a widget, is shown at the top of its step.
function unplaced(payload) {
  for (const step of steps) {
    const heading = document.getElementById(`heading-${step}`)?.closest(".mb-heading");
    if (!heading) continue;
    const problems = payload.problems.filter((problem) => !problem.at && problem.step === step);
    const text = JSON.stringify(problems);
    let box = heading.querySelector(":scope > .mb-unplaced");
    if (box ? box.dataset.text === text : !problems.length) continue;
    box?.remove();
    if (!problems.length) continue;
    box = h("div.mb-unplaced", {}, problems.map(drawProblem));
    box.dataset.text = text;
    heading.append(box);
  }
}

function marks(payload) {
  for (const link of document.querySelectorAll(".mb-steps a[data-step]")) {
    const { errors = 0, missing = 0 } = payload.marks[link.dataset.step] || {};
    link.querySelector(".mb-mark")?.remove();
    const [kind, number] = errors ? ["errors", errors] : ["missing", missing];
    if (!number) continue;
    const words = t(`wizard.mark.${kind}`, { count: number });
    link.append(h("span.mb-mark", { "data-kind": kind, title: words },
      h("span", { "aria-hidden": "true" }, String(number)), h("span.mb-only-read", {}, words)));
  }
  for (const button of document.querySelectorAll("[data-more]")) {
    const part = document.getElementById(button.dataset.more);
    const number = part ? part.querySelectorAll('.mb-problem[data-severity="error"]').length : 0;
    button.querySelector(".mb-mark")?.remove();
    if (number) button.append(h("span.mb-mark", { "data-kind": "errors" }, String(number)));
  }
}

function open(button, isOpen) {
  button.setAttribute("aria-expanded", String(isOpen));
  document.getElementById(button.dataset.more)?.toggleAttribute("data-open", isOpen);
}

// Goes to a field: shows its step, opens its section and focuses its input.
export function goTo(path, step) {
  go(step);
  const block = document.getElementById(idOf(path));
  const part = block?.closest(".mb-more");
  if (part) open(document.querySelector(`[data-more="${part.id}"]`), true);
  block?.scrollIntoView({ block: "center" });
  block?.querySelector("input, textarea")?.focus({ preventScroll: true });
}

// Gradio opens a list with the chosen entry on top, which hides the entries before it. This scrolls the list to its middle.
function showAround({ target }) {
  if (target.role !== "combobox") return;
  setTimeout(() => {
    const list = document.getElementById(target.getAttribute("aria-controls"));
    const chosen = list?.querySelector('[aria-selected="true"]');
    if (chosen) list.scrollTop = chosen.offsetTop - (list.clientHeight - chosen.offsetHeight) / 2;
  }, 60);
}
document.addEventListener("focusin", showAround);

document.addEventListener("click", ({ target }) => {
  const button = target instanceof Element && target.closest("[data-more]");
  if (button) open(button, button.getAttribute("aria-expanded") !== "true");
});
