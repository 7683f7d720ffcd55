// Where the time of an iteration goes: a waterfall. It is a table, so that screen readers can read it, too.
import { fill, h, table } from "../lib/dom.js";
import { percent, rounded } from "../lib/format.js";
import { hoursInWords } from "../lib/time.js";
import { listed, sentences, t } from "../lib/words.js";
import { errorBeside, errorWords, speedBeside } from "./accuracy.js";
import { insteadOfFigures } from "./problems.js";

const KINDS = { compute: "work", recompute: "work", bubble: "wait", optimizer: "step", offload: "step" };
const kindOf = (name) => KINDS[name] ?? "talk";

export function draw(element, payload) {
  const time = payload.data.time;
  if (!time?.is_known)
    return fill(element, h("p.mb-quiet", {}, insteadOfFigures(payload, time?.why ?? "wizard.memory.unread")));
  fill(element,
    h("div.mb-facts", {}, facts(time)),
    h("p.mb-quiet.mb-time-error", {}, certainty(time)),
    h("div.mb-legend", { "aria-hidden": "true" }, [...new Set(time.parts.map(([name]) => kindOf(name)))]
      .map((kind) => h("span", {}, h("i.mb-swatch", { "data-spent": kind }), t(`wizard.time.${kind}`)))),
    waterfall(time));
}

// All figures have the number of digits that the sum needs.
function seconds(value, whole) {
  const digits = whole >= 100 ? 1 : whole >= 10 ? 2 : 3, least = 10 ** -digits;
  return value < least ? `< ${least}` : value.toFixed(digits);
}
const share = (value) => value < 0.001 ? "< 0.1%" : percent(value);

function facts(time) {
  const about = (value) => time.error ? t("wizard.time.about", { value }) : value;
  const fact = (name, value, title, beside) => h("div.mb-fact", { title }, h("span", {}, t(`wizard.time.${name}`)),
    h("b", {}, value), beside && h("small.mb-quiet", {}, beside));
  return [
    fact("speed", about(rounded(time.tokens_per_s_per_gpu)), t("wizard.time.speed.long", {
      all: rounded(time.gpus * time.tokens_per_s_per_gpu), gpus: time.gpus }), speedBeside(time.error, time.tokens_per_s_per_gpu, rounded)),
    fact("iteration", about(t("wizard.time.in_seconds", { count: rounded(time.iteration_s) })), null,
      errorBeside(time.error, time.iteration_s, (value) => t("wizard.time.in_seconds", { count: rounded(value, 2) }), "step_low")),
    fact("mfu", percent(time.mfu), t("wizard.time.mfu.long", { tflops: rounded(time.tflops) })),
    time.speed_up && h("div.mb-fact", { title: t("wizard.time.speed_up.long") },
      h("span", {}, t("wizard.time.speed_up", { nodes: time.nodes })), h("b", {}, `${time.speed_up.toFixed(1)}×`)),
    fact("hours", time.hours === null ? h("small", {}, t("wizard.time.no_hours")) : about(hoursInWords(time.hours)), null,
      time.hours !== null && errorBeside(time.error, time.hours, hoursInWords, "hours_low")),
  ];
}

function certainty(time) {
  return sentences([time.calibrated_on && t("wizard.time.calibrated", { run: time.calibrated_on }),
    time.padding && t("wizard.time.padding", { share: share(time.padding) }),
    time.error && errorWords("time", time.error),
    time.probed_on && t("wizard.time.benchmarked", { day: time.probed_on })]);
}

function waterfall(time) {
  let before = 0;
  const rows = time.parts.map(([name, value]) => {
    const from = before, part = value / time.iteration_s;
    before += part;
    const what = listed([t(`wizard.part.${name}.long`), name === "data" && time.exchange && t(`wizard.exchange.${time.exchange}`)]);
    return [
      h("th", { scope: "row", title: what }, t(`wizard.part.${name}`)),
      h("td.mb-fall", {}, h("div", {}, h("i", { "data-spent": kindOf(name), "aria-hidden": "true",
        style: { left: `${100 * from}%`, width: `${100 * part}%` } }))),
      h("td.mb-figure", {}, seconds(value, time.iteration_s)),
      h("td.mb-figure", {}, share(part)),
      h("td.mb-what", {}, what),
    ];
  });
  const sum = [h("th", { scope: "row" }, t("wizard.time.iteration")), h("td.mb-fall", {}),
    h("td.mb-figure", {}, seconds(time.iteration_s, time.iteration_s)), h("td.mb-figure", {}, percent(1)),
    h("td", {})];
  const head = ["part", "bar", "seconds", "share", "what"].map((name) => h("th", { scope: "col",
    class: name === "seconds" || name === "share" ? "mb-figure" : null }, t(`wizard.time.column.${name}`)));
  return table("mb-table mb-spent", head, [...rows, sum], t("wizard.time.caption"));
}
