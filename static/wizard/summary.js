// The estimate in one line under the stepper: whether it fits, the memory of a GPU, the speed and the duration.
import { fill, h } from "../lib/dom.js";
import { count, gib, percent, rounded, short } from "../lib/format.js";
import { hoursInWords } from "../lib/time.js";
import { t } from "../lib/words.js";
import { accuracy, errorBeside, errorWords, speedBeside } from "./accuracy.js";
import { currentStep } from "./channel.js";
import { drawProblem, noFigures } from "./problems.js";

let spoken = "";

export function draw(element, payload) {
  const figures = payload.summary;
  if (!figures.sound) {
    fill(element, h("div.mb-summary", { "data-state": "open" },
      h("strong", {}, t("wizard.summary.open", { count: figures.errors }))));
    return say(element, "");
  }
  const state = figures.fits === null ? "unknown" : figures.near ? "near" : figures.fits ? "fits" : "over";
  const memory = figures.need_gib !== null && (figures.host
    ? t("wizard.summary.host", { need: gib(figures.host.need), node: gib(figures.host.node) })
    : t("wizard.summary.memory", { need: needOf(figures), gpu: gib(figures.gpu_gib) }));
  const verdict = t(`wizard.summary.${figures.parameters === null ? "unestimated" : state}`);
  const width = (factor) => ({ width: `${Math.min(100, 100 * factor * figures.need_gib / figures.gpu_gib)}%` });
  fill(element, h("div.mb-summary", { "data-state": state },
    h("div.mb-verdict", { title: figures.need_gib !== null ? accuracy(figures.accuracy) : noFigures(payload)?.message },
      h("strong", {}, verdict),
      memory && h("span", {}, memory)),
    figures.need_gib !== null && h("div.mb-gauge", { "aria-hidden": "true" },
      h("i.mb-meter-upper", { style: width(figures.memory_error?.high ?? 1) }), h("i", { style: width(1) })),
    fact("plan", figures.plan), paces(figures),
    figures.bubble !== null && fact("bubble", percent(figures.bubble)),
    fact("batch", figures.global_batch.toLocaleString("en")),
    figures.parameters !== null && fact("parameters", count(figures.parameters))), offer(payload));
  say(element, verdict);
}

// The interval of the need, or an assumed need, which has none.
const needOf = ({ memory_error: error, need_gib: need }) => errorBeside(error, need, short) ?? t("accuracy.assumed", { gib: short(need) });

// A learning rate that was chosen for another batch. Its own step shows this problem beside the field; the other steps
// show it here.
function offer(payload) {
  const problem = payload.problems.find((problem) => problem.code === "learning_rate_batch");
  return problem && currentStep() !== problem.step && drawProblem(problem);
}

const fact = (name, value) => labelled(t(`wizard.summary.${name}`), value, t(`wizard.summary.${name}.long`));

// A figure is missing if the GPU's speed or the number of samples is unknown.
function paces({ speed, hours, time_error: error }) {
  const title = error && errorWords("time", error);
  return [speed !== null && labelled(t("wizard.time.speed"), speedBeside(error, speed, (value) => rounded(value, 2)), title),
    hours !== null && labelled(t("wizard.time.hours"), errorBeside(error, hours, hoursInWords, "hours_low"), title)];
}

function labelled(name, value, title) {
  return h("div.mb-fact", { title }, h("span", {}, name), h("b", {}, String(value)));
}

// A screen reader reads this only when the verdict changes, not at every keystroke.
function say(element, text) {
  if (text === spoken) return;
  spoken = text;
  let region = element.parentElement.querySelector("[aria-live]");
  if (!region) {
    region = h("div.mb-only-read", { "aria-live": "polite" });
    element.after(region);
  }
  region.textContent = text;
}
