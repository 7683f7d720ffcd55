// The run that the draft continues. Every step names it, with the settings of the draft that its checkpoint does not
// fit.
import { fill, h } from "../lib/dom.js";
import { lang, t } from "../lib/words.js";
import { currentStep, sendToServer } from "./channel.js";
import { drawProblem } from "./problems.js";

let drawn = "";

export function draw(element, payload) {
  const { source } = payload, signature = JSON.stringify([source, currentStep() === "launch"]);
  if (signature === drawn && element.childElementCount === Number(Boolean(source))) return;
  drawn = signature;
  if (!source) return fill(element);
  const { problems } = source, place = `runs/${source.run}`;
  const edits = Object.assign({}, ...problems.map((problem) => problem.edits ?? {}));
  const bound = source.bound.join(lang() === "zh" ? "、" : ", ");
  const state = problems.length ? "unfit" : source.bound.length ? "fits" : "free";
  fill(element, h("section.mb-card.mb-continuing", { "data-state": state, "aria-label": t("wizard.continuing") },
    h("div.mb-actions", {},
      h("div.mb-continuing-words", {},
        h("p", {}, h("b", {}, t("wizard.continuing.step", { step: source.step.toLocaleString("en") })), " ",
          h("a", { href: `#${place}`, "data-go": place }, source.run)),
        h("p", { role: "status" }, t(`wizard.continuing.${state}`, { bound }))),
      Object.keys(edits).length > 0 && h("button.mb-button", { type: "button", "data-do": "restore",
        onclick: () => sendToServer("apply", { edits }) }, t("wizard.continuing.restore")),
      h("button.mb-button", { type: "button", "data-do": "begin_anew",
        onclick: () => sendToServer("fetch", { kind: "begin_anew" }) }, t("wizard.continuing.off"))),
    currentStep() !== "launch" && problems.map(briefly).map(drawProblem)));
}

// One button reverts all edits, so problems have no buttons. Problems of one kind show their fix once. The launch step
// has its own list.
function briefly(problem, at, problems) {
  const isLast = problems.findLastIndex((other) => other.code === problem.code) === at;
  return { ...problem, edits: null, fix: isLast ? problem.fix : "" };
}
