// Sources of a job: a recipe, a saved preset, or a file.
import { fill, h, table } from "../lib/dom.js";
import { t } from "../lib/words.js";
import { currentStep, latestPayload, sendToServer } from "./channel.js";
import { drawProblem } from "./problems.js";

const OWN = "own:";
const KINDS = ["recipe", "import", "preset", "preset_save", "preset_import", "preset_delete", "cluster", "cluster_save",
  "cluster_delete"];
let isBusy = false, seen = null, listed = null, lastRequest = null;

function request(kind, more) {
  if (isBusy) return;
  isBusy = true;
  lastRequest = [kind, more];
  sendToServer("fetch", { kind, ...more });
  redraw();
}

function redraw() {
  const element = document.querySelector('[data-panel="start"]');
  if (element) drawStart(element, latestPayload());
}

// This is made once: a payload after every edit must not remove the text that the user is typing.
export function drawStart(element, payload) {
  const { recipes, presets } = payload?.data ?? {};
  if (!element.firstChild && recipes) {
    listed = null;
    fill(element, choose(), keep(), bring(), h("div.mb-start-answer", { role: "status" }));
  }
  const answer = element.querySelector(".mb-start-answer");
  if (!answer) return;
  if (recipes) list(element.querySelector("#mb-recipe"), recipes, presets);
  const result = KINDS.includes(payload?.fetched?.kind) ? payload.fetched : null;
  if (result && result !== seen) {
    seen = result;
    isBusy = false;
    fill(answer, resultView(result));
    // Below an open import the user would not see it, and on another step it is not on screen.
    if (currentStep() === "hardware") answer.scrollIntoView({ block: "nearest" });
  }
  for (const button of element.querySelectorAll("button")) button.disabled = isBusy;
}

function list(select, recipes, presets) {
  const text = JSON.stringify([recipes, presets]);
  if (text === listed) return;
  listed = text;
  const chosen = select.value;
  const group = (name, options) => options.length > 0 && h("optgroup", { label: t(name) }, options);
  fill(select, h("option", { value: "" }, t("wizard.start.recipe.none")),
    group("wizard.start.own", presets.map((name) => h("option", { value: OWN + name }, name))),
    group("wizard.start.recipes", recipes.map((recipe) => h("option", { value: recipe.key }, recipe.name))));
  select.value = [...select.options].some((option) => option.value === chosen) ? chosen : "";
  select.dispatchEvent(new Event("change"));
}

function choose() {
  const own = () => select.value.startsWith(OWN) && select.value.slice(OWN.length);
  const use = () => own() ? request("preset", { name: own() }) : select.value && request("recipe", { key: select.value });
  const get = h("a.mb-tool", { id: "mb-preset-get", download: "", hidden: true }, t("wizard.start.own.get"));
  const remove = h("button.mb-tool", { type: "button", id: "mb-preset-delete", hidden: true,
    onclick: () => own() && confirmDelete(own()) }, t("wizard.start.own.delete"));
  const select = h("select", { id: "mb-recipe", onchange: () => {
    get.hidden = remove.hidden = !own();
    if (own()) get.href = `/api/presets/${encodeURIComponent(own())}`;
  } });
  return h("div.mb-fetch.mb-actions", {}, h("label", {}, h("span", {}, t("wizard.start.recipe")), select),
    h("button.mb-button", { type: "button", id: "mb-recipe-use", onclick: use }, t("wizard.start.recipe.use")),
    get, remove);
}

function confirmDelete(name, kind = "preset_delete", question = "wizard.start.own.delete.sure") {
  const answer = document.querySelector(".mb-start-answer");
  fill(answer, h("div.mb-problem", { "data-severity": "warning" }, t(question, { name }),
    h("div.mb-choices", {},
      h("button.mb-apply", { type: "button", id: "mb-preset-delete-do",
        onclick: () => request(kind, { name }) }, t("wizard.start.own.delete")),
      h("button.mb-apply", { type: "button", onclick: () => fill(answer) }, t("wizard.start.own.stay")))));
  answer.scrollIntoView({ block: "nearest" });
}

function keep() {
  const save = () => request("preset_save", { name: input.value.trim() });
  const input = h("input", { type: "text", id: "mb-preset-name", class: "mb-fetch-id", maxlength: "64",
    spellcheck: "false", autocomplete: "off", onkeydown: (event) => { if (event.key === "Enter") save(); } });
  return h("div.mb-fetch.mb-actions.mb-keep", {},
    h("label", {}, h("span", {}, t("wizard.start.own.name")), input),
    h("button.mb-button", { type: "button", id: "mb-preset-save", onclick: save }, t("wizard.start.own.save")));
}

function bring() {
  let stem = "";
  const text = h("textarea", { id: "mb-import-text", rows: "10", spellcheck: "false", autocomplete: "off",
    placeholder: "model_name_or_path: /models/Qwen3-8B\nstage: sft\n..." });
  // The browser's own button has the browser's language.
  const name = h("span.mb-quiet", {});
  const file = h("input", { type: "file", id: "mb-import-file", class: "mb-only-read", accept: ".yaml,.yml,.sh,text/yaml",
    onchange: async () => {
      if (!file.files[0]) return;
      name.textContent = file.files[0].name;
      stem = file.files[0].name.replace(/\.ya?ml$/i, "");
      text.value = await file.files[0].text();
    } });
  return h("details.mb-import", {}, h("summary", {}, t("wizard.start.import")),
    h("p.mb-quiet", {}, t("wizard.start.import.lead")),
    h("div.mb-actions", {}, file,
      h("label", { for: "mb-import-file", class: "mb-file" }, t("wizard.start.import.file")), name),
    h("label", { for: "mb-import-text" }, t("wizard.start.import.text")), text,
    h("div.mb-actions", {},
      h("button.mb-button", { type: "button", id: "mb-import-do",
        onclick: () => request("import", { text: text.value }) }, t("wizard.start.import.do")),
      h("button.mb-button", { type: "button", id: "mb-import-keep",
        onclick: () => request("preset_import", { name: stem, text: text.value }) }, t("wizard.start.own.import"))));
}

function resultView(result) {
  const isDone = Object.keys(result.note).length > 0 && !result.problems.length;
  const isDemo = result.kind === "recipe" && result.note.key === "demo";
  const done = isDemo ? "wizard.start.recipe.demo.done"
    : result.kind === "recipe" ? "wizard.start.recipe.done"
    : result.kind !== "import" ? `wizard.start.${result.kind}.done`
    : result.lines.length ? "wizard.start.import.done" : "wizard.start.import.job";
  const isTaken = result.problems.some((problem) => ["preset_exists", "cluster_exists"].includes(problem.code));
  return [isDone && h("p.mb-good", {}, t(done, result.note)),
    result.problems.map((problem) => drawProblem(problem)),
    isTaken && h("div.mb-choices", {}, h("button.mb-button", { type: "button", id: "mb-preset-replace",
      onclick: () => request(lastRequest[0], { ...lastRequest[1], replace: true }) }, t("wizard.start.own.replace"))),
    isDone && report(result.lines)];
}

// The saved clusters, and a form that saves the fields as a cluster.
export function drawOwnClusters(element, payload) {
  const own = payload?.data?.own_clusters;
  if (!own) return;
  if (!element.firstChild) {
    const save = () => request("cluster_save", { name: input.value.trim() });
    const input = h("input", { type: "text", id: "mb-cluster-name", class: "mb-fetch-id", maxlength: "64",
      spellcheck: "false", autocomplete: "off", onkeydown: (event) => { if (event.key === "Enter") save(); } });
    fill(element, h("div.mb-chips", { role: "group", "aria-label": t("wizard.clusters.own") }),
      h("div.mb-fetch.mb-actions.mb-keep", {}, h("label", {}, h("span", {}, t("wizard.clusters.name")), input),
        h("button.mb-button", { type: "button", id: "mb-cluster-save", onclick: save }, t("wizard.clusters.save"))));
  }
  fill(element.firstChild, own.length > 0 && h("span.mb-quiet", {}, t("wizard.clusters.own")), own.map(({ name, on }) => [
    h("button", { type: "button", "data-key": name, "aria-pressed": String(on), onclick: () => request("cluster", { name }) }, name),
    on && h("button.mb-tool", { type: "button", "data-key": `- ${name}`, "aria-label": t("wizard.clusters.delete", { name }),
      title: t("wizard.clusters.delete", { name }),
      onclick: () => confirmDelete(name, "cluster_delete", "wizard.clusters.delete.sure") }, "×")]));
}

// A value that is kept needs no reason, unless it has one. All other lines are shown.
function report(lines) {
  const notable = lines.filter((line) => line.outcome !== "kept" || line.reason);
  if (!notable.length) return null;
  const names = ["key", "outcome", "value", "became", "why"];
  const rows = notable.map((line) => [line.key, t(`import.outcome.${line.outcome}`), line.value, line.became,
    line.reason]);
  return table("mb-table mb-import-report", names.map((name) => t(`import.column.${name}`)), rows,
    t("wizard.start.import.report"));
}
