// From samples to steps and hours, each figure with its source.
import { fill, h } from "../lib/dom.js";
import { grouped, rounded } from "../lib/format.js";
import { hoursInWords } from "../lib/time.js";
import { listed, t } from "../lib/words.js";
import { errorBeside } from "./accuracy.js";
import { noFigures } from "./problems.js";

export function draw(element, payload) {
  const plan = payload.data.steps;
  if (!plan) return fill(element);
  if (!plan.steps) return fill(element, h("p.mb-quiet", {}, t("wizard.steps.unknown")));
  fill(element, h("div.mb-facts", {}, facts(plan)),
    plan.bound && plan.samples && (plan.bound === "packed" || plan.hours !== null) && h("p.mb-quiet", {},
      t(`wizard.steps.bound.${plan.bound}`, { cutoff: grouped(plan.cutoff) })),
    noFigures(payload) && h("p.mb-quiet", {}, noFigures(payload).message));
}

function facts(plan) {
  const fact = (name, value, from) => h("div.mb-fact", { "data-fact": name },
    h("span", {}, t(`wizard.steps.${name}`)), h("b", {}, value), from && h("small", {}, from));
  const batch = t("wizard.steps.batch.from", { micro: plan.micro_batch, accumulation: plan.accumulation,
    copies: plan.data_parallel });
  const epochs = plan.each && plan.by_steps ? plan.steps / plan.each : plan.epochs;
  return [
    plan.samples && fact("samples", grouped(plan.samples),
      plan.from ? t("wizard.steps.read", { from: plan.from }) : t("wizard.steps.typed")),
    plan.sequences && fact("sequences", grouped(plan.sequences), t("wizard.steps.sequences.from", {
      cutoff: grouped(plan.cutoff) })),
    fact("batch", grouped(plan.batch), batch),
    plan.each && fact("each", grouped(plan.each), t(`wizard.steps.each.${plan.group ? "groups"
      : plan.keeps_rest ? "kept" : "dropped"}`, { group: plan.group })),
    fact("total", grouped(plan.steps), plan.by_steps ? t("wizard.steps.set") : ""),
    plan.each && fact("epochs", rounded(epochs)),
    plan.hours !== null && fact("hours", duration(plan), listed([t("wizard.steps.hours.from", {
      seconds: rounded(plan.step_s) }), errorBeside(plan.error, plan.hours, hoursInWords, "hours_low")])),
  ];
}

function duration(plan) {
  const text = hoursInWords(plan.hours);
  return plan.error ? t("wizard.time.about", { value: text }) : text;
}
