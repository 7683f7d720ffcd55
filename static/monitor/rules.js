// The rules of alerts on metrics: a list, and a form that adds one.
import { h, keyed, text } from "../lib/dom.js";
import { w } from "../lib/words.js";

const LOGGED = ["loss", "grad_norm", "learning_rate", "step_s"];
const CONDITIONS = ["above", "below", "rise", "no_improvement"];
// Condition -> fields of the form that it needs.
const FIELDS = { above: ["limit"], below: ["limit"], rise: ["limit", "count"], no_improvement: ["count", "better"] };

// `act(name, values)` sends an action of the monitor.
export function Rules(act) {
  const metric = h("select", { onchange: () => proposeBetter() });
  const condition = h("select", { onchange: showFields }, CONDITIONS.map((name) => h("option", { value: name }, w(`rules.kind.${name}`))));
  const limit = h("input", { type: "number", step: "any", required: true });
  const count = h("input", { type: "number", min: "1", max: "1000", value: "5", required: true });
  const better = h("select", {}, ["lower", "higher"].map((name) => h("option", { value: name }, w(`rules.better.${name}`))));
  const allRuns = h("input", { type: "checkbox" });
  const inputs = { metric, condition, limit, count, better };
  const labels = Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, h("label", {}, w(`rules.${name}`), input)]));
  const form = h("form.mbm-tools", { onsubmit: (event) => {
    event.preventDefault();
    act("add_rule", { all_runs: allRuns.checked, rule: { metric: metric.value, condition: condition.value,
      limit: Number(limit.value || 0), count: Number(count.value || 1), better: better.value } });
  } }, Object.values(labels), h("label", {}, allRuns, w("rules.all_runs")), h("button.mb-button", { type: "submit" }, w("rules.add")));
  const list = h("ul.mbm-rules"), none = h("p.mb-quiet", {}, w("rules.none"));
  const root = h("details.mb-card.mbm-group", {}, h("summary", {}, h("h3", {}, w("rules")), h("span.mb-quiet")),
    h("p.mb-quiet", {}, w("rules.words")), list, none, form);
  let directions = {};

  function showFields() {
    for (const name of ["limit", "count", "better"]) {
      const isNeeded = FIELDS[condition.value].includes(name);
      labels[name].hidden = !isNeeded;
      inputs[name].disabled = !isNeeded;
    }
  }

  function proposeBetter() {
    better.value = directions[metric.value] ?? "lower";
  }

  function takeNames(names) {
    const listed = [...LOGGED.map((name) => ({ name, title: name })), ...names.filter(({ group }) => group !== "marks")];
    directions = Object.fromEntries(names.map((one) => [one.name, one.better]));
    keyed(metric, listed, ({ name }) => name, ({ name }) => h("option", { value: name }), (option, { name }) => text(option, name));
  }

  function take(rules) {
    none.hidden = rules.length > 0;
    text(root.firstChild.lastChild, rules.length || "");
    keyed(list, rules, (rule) => rule.id, () => h("li", {}, h("span"), h("span.mb-quiet"),
      h("button.mbm-chip", { type: "button" }, "×")), (item, rule) => {
      const words = w("rules.line", { metric: rule.metric, condition: w(`rule.${rule.condition}`, rule) });
      text(item.children[0], words);
      text(item.children[1], rule.all_runs ? w("rules.scope_all") : "");
      item.lastChild.setAttribute("aria-label", w("rules.remove", { rule: words }));
      item.lastChild.onclick = () => act("remove_rule", { id: rule.id });
    });
  }

  takeNames([]);
  showFields();
  return { root, take, takeNames };
}
