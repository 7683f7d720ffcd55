// Review: the files and commands of the launch, to read, copy and download. difference.js compares them with an earlier
// run.
import { commands, copyButton } from "../lib/commands.js";
import { fill, h } from "../lib/dom.js";
import { gap, t } from "../lib/words.js";
import { steps } from "../web/shell.js";
import { difference } from "./difference.js";
import { goTo } from "./fields.js";
import { drawProblem } from "./problems.js";

const MANY_NODES = 8;
let shownFile = null, shownNode = 0, drawn = "";

export function draw(element, payload) {
  if (!("review" in payload.data)) return;
  const review = payload.data.review;
  const text = JSON.stringify([review, payload.problems, shownFile, shownNode]);
  if (text === drawn && element.childElementCount) return;
  drawn = text;
  if (!review) {
    fill(element, card(t("wizard.review.errors"), todoList(payload, "error")));
    return;
  }
  fill(element, 
    !review.complete && card(t("wizard.review.missing"),
      h("p.mb-quiet", {}, t("wizard.review.missing.lead")),
      (review.problems || []).map(drawProblem), todoList(payload, "missing", "error")),
    files(element, payload, review), launchCommands(element, payload, review),
    difference(payload));
}

function card(title, ...children) {
  return h("section.mb-card.mb-section", {}, h("h3", {}, title), children);
}

// Problems to solve in the order of the steps, each with a link to its field.
export function todoList(payload, ...severities) {
  const problems = payload.problems.filter((problem) => severities.includes(problem.severity));
  problems.sort((one, other) => steps.indexOf(one.step) - steps.indexOf(other.step));
  const link = ({ at, step, label }) => h("button.mb-link", { type: "button",
    onclick: () => goTo(at, step) }, label || t(`step.${step}`));
  return h("ul.mb-todo", {}, problems.map((problem) => h("li", {},
    h("span.mb-quiet", {}, t(`step.${problem.step}`)),
    h("span", {}, link(problem),
      problem.code !== "needed_for_launch" && [" ", commands(problem.message), gap(), commands(problem.fix)]))));
}

function files(element, payload, review) {
  const all = [{ name: "job.yaml", text: review.job }, { name: "job.json", text: review.json },
    ...(review.files || [])];
  if (!all.some((file) => file.name === shownFile)) shownFile = all[0].name;
  const file = all.find(({ name }) => name === shownFile);
  return card(t("wizard.review.files"),
    h("div.mb-bar", {}, pick(all.map(({ name }) => [name, name]), shownFile, (name) => {
      shownFile = name;
      draw(element, payload);
    }), copyButton(file.text), download(file),
    review.complete && h("a.mb-tool", { href: "/api/archive", download: "" }, t("wizard.review.download"))),
    h("pre.mb-code", { role: "group", tabindex: "0", "aria-label": file.name }, file.text),
    (review.notes || []).map(drawProblem));
}

// The user can download a plan before the nodes are known.
const download = ({ name, text }) => h("a.mb-tool", { download: name,
  href: `data:text/plain;charset=utf-8,${encodeURIComponent(text)}` }, t("wizard.review.download_one", { name }));

function launchCommands(element, payload, review) {
  if (!review.complete) return null;
  const command = review.commands[Math.min(shownNode, review.commands.length - 1)];
  const nodes = review.commands.map(({ rank, label }) => [rank, label]);
  const variables = review.environment.map(([name, value]) => `${name}=${value}`).join("\n");
  return card(t("wizard.review.commands"), h("p.mb-quiet", {}, t(`wizard.review.commands.lead${review.scheduler ? "_slurm" : ""}`)),
    h("div.mb-bar", {}, (nodes.length > MANY_NODES ? select : pick)(nodes, command.rank, (rank) => {
      shownNode = rank;
      draw(element, payload);
    }), copyButton(command.text)),
    h("pre.mb-code.mb-wrap", { role: "group", tabindex: "0", "aria-label": command.node }, words(command.text)),
    h("div.mb-bar", {}, h("h4", {}, t("wizard.review.environment")), copyButton(variables)),
    h("pre.mb-code", { tabindex: "0" }, variables));
}

function pick(choices, chosen, onPick) {
  return h("div.mb-choice", { role: "group" }, choices.map(([value, label]) =>
    h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => onPick(value) }, label)));
}

// An argument does not break at its hyphens if it fits on one line.
const words = (text) => text.split(" ").flatMap((word, place) => [place ? " " : "",
  h("span.mb-word", {}, word)]);

// The same choice for many nodes.
function select(choices, chosen, onPick) {
  const onchange = (event) => onPick(choices[event.target.selectedIndex][0]);
  return h("label.mb-choice.mb-pick", {}, t("wizard.review.node"), h("select", { onchange, "aria-label": t("wizard.review.node") },
    choices.map(([value, label]) => h("option", { selected: value === chosen }, label))));
}
