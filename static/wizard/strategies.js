// The strategy table. The page requests it when it is shown, because the server searches the plans of every engine for
// it.
import { fill, h, table } from "../lib/dom.js";
import { rounded } from "../lib/format.js";
import { lang, sentences, t } from "../lib/words.js";
import { sendToServer } from "./channel.js";
import { range } from "./accuracy.js";
import { meter } from "./meter.js";

let requestedAt = 0;

export async function draw(element, payload) {
  const own = (requestedAt = payload.at);
  if (!element.childElementCount) fill(element, h("p.mb-quiet", {}, t("wizard.strategies.asking")));
  let result = null;
  try {
    const answer = await fetch(`/api/strategies?lang=${lang()}`);
    result = answer.ok ? await answer.json() : null;
  } catch { /* said below */ }
  if (own !== requestedAt) return;
  const text = JSON.stringify(result);
  if (element.dataset.text === text) return;
  element.dataset.text = text;
  if (!result?.rows.length) return fill(element, h("p.mb-quiet", {}, result?.why ?? t("wizard.plan.ask.failed")));
  // Columns without any value are left out.
  const isEmpty = { speed: result.rows.every((row) => row.speed === null), hours: result.rows.every((row) => row.hours === null) };
  const names = ["name", "memory", "speed", "hours", "why", "rule", "choose"].filter((name) => !isEmpty[name]);
  const head = names.map((name) => h("th", { scope: "col",
    class: ["speed", "hours"].includes(name) ? "mb-figure" : null }, t(`wizard.strategies.${name}`)));
  fill(element, h("p.mb-quiet", {}, t("wizard.strategies.lead")),
    result.batch && h("p.mb-problem", { "data-severity": "note" }, sentences(result.batch)),
    table("mb-table mb-strategies", head, result.rows.map((row) => names.map((name) => line(row, result.gpu_gib)[name]))));
}

function line(row, gpu) {
  return {
    name: h("th", { scope: "row", "data-recommended": row.recommended }, row.name,
      row.recommended && h("span.mb-best", {}, t("wizard.strategies.best")),
      row.plan && h("small", {}, row.plan)),
    memory: h("td", {}, row.plan ? meter(row.need_gib, row.need_gib_low === null ? null : [row.need_gib_low, row.need_gib_high], gpu,
      row.near ? "wizard.near" : row.fits ? "wizard.fits" : row.over ? "wizard.over" : "wizard.over.host", !row.fits && !row.near) : "–"),
    speed: h("td.mb-figure", {}, row.fits && row.speed ? rounded(row.speed) : "–"),
    hours: h("td.mb-figure", {}, row.fits && row.hours !== null ? range(row.hours_up_to ? null : row.hours_low, row.hours_high) : "–"),
    why: h("td", {}, row.why, row.is_unfit && h("span.mb-unloaded", {}, "⊘ ", t("wizard.plan.mark.unfit"))),
    rule: h("td.mb-rule", {}, row.rule ? [row.rule.words, row.rule.meant && h("span.mb-meant", {},
      t("wizard.strategies.meant"))] : "–"),
    choose: h("td", {}, row.is_own ? h("span.mb-quiet", {}, t("wizard.strategies.own")) : row.plan
      && h("button.mb-tool", { type: "button", "aria-label": t("wizard.strategies.choose.long", { name: row.name }),
        onclick: () => sendToServer("apply", { edits: row.edits }) }, t("wizard.plan.choose"))),
  };
}
