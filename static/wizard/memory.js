// The memory of the chosen plan: a stacked bar per pipeline stage, against the GPU's memory. A bar opens to show its
// formula.
import { fill, h, table } from "../lib/dom.js";
import { count, gib } from "../lib/format.js";
import { gap, t } from "../lib/words.js";
import { accuracy } from "./accuracy.js";
import { insteadOfFigures } from "./problems.js";

const open = new Set();

export function draw(element, payload) {
  const memory = payload.data.memory;
  if (!memory) {
    fill(element, h("p.mb-quiet", {}, insteadOfFigures(payload, "wizard.memory.unread")));
    return;
  }
  const isOpen = element.querySelector(".mb-twin")?.open;
  const whole = Math.max(memory.gpu_gib, ...memory.stages.map((stage) => stage.need_gib));
  fill(element,
    h("p.mb-why-note.mb-quiet", {}, t("wizard.memory.why")),
    h("div.mb-legend", { "aria-hidden": "true" }, memory.terms.map((term) => h("span", {}, swatch(term),
      t(`term.${term}`)))),
    h("div.mb-stacks", { style: { "--at": memory.gpu_gib / whole } },
      h("div.mb-limit", { "aria-hidden": "true" },
        h("span", {}, t("wizard.memory.limit", { gib: gib(memory.gpu_gib) }))),
      memory.stages.map((stage) => stack(memory, stage, whole))),
    memory.host && host(memory.host),
    h("p.mb-accuracy.mb-quiet", {}, accuracy(payload.summary.accuracy),
      counted(memory) && [gap(), counted(memory)]),
    figures(memory, isOpen));
}

// Returns the assumed length of the samples; nothing for packed samples.
function counted({ cutoff_len: length, largest_tokens: largest }) {
  const tokens = largest || length;
  const key = largest ? "wizard.memory.largest" : "wizard.memory.unpacked";
  return tokens && t(key, { tokens: tokens.toLocaleString("en") });
}

// The RAM of a node beside the size of what is offloaded to it.
function host({ need_gib: need, node_gib: node }) {
  if (node === null) return h("p.mb-host", {}, t("wizard.memory.host", { need: gib(need) }));
  const words = t("wizard.memory.host_of", { need: gib(need), node: gib(node) });
  return h("p", { class: need > node ? "mb-host mb-bad" : "mb-host" }, words);
}

const swatch = (term) => h("i.mb-swatch", { "data-term": term, "aria-hidden": "true" });

// The content of a closed stage is made when the user opens it.
function stack(memory, stage, whole) {
  const part = (term) => stage[term] > 0 && h("i", { "data-term": term,
    style: { width: `${100 * stage[term] / whole}%` }, title: `${t(`term.${term}`)}: ${gib(stage[term])} GiB` });
  const isOver = stage.need_gib > memory.gpu_gib;
  const label = t("wizard.memory.why.open",
    { stage: stage.stage, need: gib(stage.need_gib), gpu: gib(memory.gpu_gib) });
  const bar = h("summary.mb-stack", { "data-key": `stage-${stage.stage}` }, h("span.mb-only-read", {}, label),
    h("span.mb-stack-name", { "aria-hidden": "true" }, t("wizard.memory.stage", { stage: stage.stage })),
    h("span.mb-stack-bar", { "aria-hidden": "true" }, memory.terms.map(part)),
    h(`span.mb-stack-sum${isOver ? ".mb-bad" : ""}`, { "aria-hidden": "true" }, `${gib(stage.need_gib)} GiB`));
  const details = h("details.mb-why", { "data-stage": stage.stage }, bar);
  const fillIn = () => details.children.length < 2 && details.append(why(memory, stage));
  details.addEventListener("toggle", () => {
    if (details.open) fillIn();
    open[details.open ? "add" : "delete"](stage.stage);
  });
  if (open.has(stage.stage)) {
    fillIn();
    details.open = true;
  }
  return details;
}

// Each term has one cell that spans its products, and one cell with their sum, which is the length of its part of the
// bar.
function why(memory, stage) {
  const rows = memory.terms.flatMap((term) => {
    const parts = stage.why.filter((part) => part.term === term && part.gib > 0);
    return parts.map((part, index) => [
      index === 0 && h("th", { scope: "rowgroup", rowspan: parts.length }, swatch(term), t(`term.${term}`)),
      h("td", {}, t(`explain.${part.name}`)),
      h("td.mb-formula", {}, formula(part.factors)),
      h("td.mb-figure", {}, part.gib.toFixed(2)),
      index === 0 && h("td.mb-figure.mb-term-sum", { rowspan: parts.length }, stage[term].toFixed(2)),
    ].filter(Boolean));
  });
  const sum = [h("th", { scope: "row", colspan: 4 }, t("wizard.memory.sum")),
    h("td.mb-figure.mb-term-sum", {}, stage.need_gib.toFixed(2))];
  const head = ["term", "part", "formula", "gib", "sum"].map((name) => h("th", { scope: "col",
    class: name === "gib" || name === "sum" ? "mb-figure" : null }, t(`wizard.memory.why.${name}`)));
  return table("mb-table", head, [...rows, sum],
    t("wizard.memory.why.caption", { stage: stage.stage, need: gib(stage.need_gib) }));
}

function formula(factors) {
  return factors.flatMap(([name, number], index) => [index > 0 && " ",
    h("span.mb-factor", {}, index > 0 && "× ", h("b", {}, figure(number)),
      ` ${t(`explain.factor.${name}`)}`)]);
}

// Examples: 1,234 in full, 0.0625 as 1/16, other numbers with as many digits as a reader can use.
function figure(number) {
  const parts = Math.round(1 / number);
  if (number < 1 && parts * number > 1 - 1e-9 && parts * number < 1 + 1e-9) return `1/${parts}`;
  return number.toLocaleString("en", { maximumFractionDigits: number < 100 ? 3 : number < 1e6 ? 1 : 0 });
}

function figures(memory, isOpen) {
  const head = [t("wizard.memory.stage_column"), t("wizard.memory.layers"), t("wizard.memory.parameters"),
    ...memory.terms.map((term) => t(`term.${term}`)), t("wizard.memory.sum")];
  const rows = memory.stages.map((stage) => [String(stage.stage), String(stage.layers), count(stage.parameters),
    ...memory.terms.map((term) => stage[term].toFixed(2)), stage.need_gib.toFixed(2)]);
  const caption = t("wizard.memory.caption", { gib: gib(memory.gpu_gib) });
  const details = h("details.mb-twin", {},
    h("summary", { "data-key": "figures" }, t("wizard.memory.figures")), table(null, head, rows, caption));
  details.open = Boolean(isOpen);
  return details;
}
