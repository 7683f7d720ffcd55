// dataset_info.json on the nodes: its entries, a form for one entry, and files that become a data set.
import { fill, h, table } from "../lib/dom.js";
import { t } from "../lib/words.js";
import { latestPayload } from "./channel.js";
import { faultView } from "./data_preview.js";
import { button, fetchPanels, panel, request } from "./fetch.js";

const KINDS = ["dataset_info", "dataset_file", "dataset_upload", "dataset_check", "dataset_save", "dataset_remove", "dataset_use"];
const MEDIA = ["images", "videos", "audios"];
const COLUMNS = { alpaca: ["prompt", "query", "response", "history", "system", ...MEDIA], sharegpt: ["messages", "system", "tools", ...MEDIA] };
const PAIR = ["chosen", "rejected"];
const TAGS = ["role_tag", "content_tag", "user_tag", "assistant_tag", "observation_tag", "function_tag", "system_tag"];
// What LLaMA-Factory 0.9.5 takes where an entry has no `columns` or no `tags` (src/llamafactory/data/parser.py).
const DEFAULTS = { columns: { prompt: "instruction", query: "input", response: "output", messages: "conversations" },
  tags: { role_tag: "from", content_tag: "value", user_tag: "human", assistant_tag: "gpt", observation_tag: "observation",
    function_tag: "function_call", system_tag: "system" } };

const d = (key, values) => t(`wizard.datasets.${key}`, values);
let seen = null, shown = null, checked = null, editing = null;

function draw(element) {
  panel(element, KINDS, head);
  let body = element.querySelector(".mb-datasets");
  if (!body) element.append(body = h("div.mb-datasets", {}));
  const answer = latestPayload()?.fetched?.datasets;
  if (!answer || answer === seen) return;
  seen = answer;
  take(answer);
  drawBody(body);
}

function take(answer) {
  if (answer.rows) shown = answer;
  if (answer.saved) editing = null;
  if (answer.used) shown?.rows.forEach((row) => { row.isUsed = answer.used.includes(row.name); });
  if (answer.form) open(answer.form);
  checked = answer.checked ?? null;
}

function open({ name, entry, previous, seen: versions, columns = [] }) {
  const part = (key) => ({ ...(entry[key] ?? DEFAULTS[key]) });
  editing = { previous, versions, isNew: previous === null, name, file_name: entry.file_name ?? "", formatting: entry.formatting ?? "alpaca",
    ranking: Boolean(entry.ranking), columns: part("columns"), tags: part("tags"), there: columns };
}

const redraw = () => drawBody(document.querySelector('[data-panel="dataset_info"] .mb-datasets'));

function drawBody(body) {
  fill(body, shown && !editing && entries(), editing && form(), checked && checkView());
}

function head() {
  const path = h("input.mb-fetch-id", { type: "text", spellcheck: "false", autocomplete: "off", placeholder: "/shared/data/my_data.jsonl", list: "mb-dataset-files" });
  const file = h("input.mb-only-read", { type: "file", accept: ".json,.jsonl", tabindex: "-1", "aria-label": d("upload"),
    onchange: () => { upload(file.files[0]); file.value = ""; } });
  return [button("dataset_info"), h("label", {}, h("span", {}, d("path")), path), button("dataset_file", () => ({ path: path.value })),
    h("button.mb-button", { type: "button", "data-upload": true, onclick: () => file.click() }, d("upload")), file];
}

async function upload(file) {
  // The server refuses larger files with its own words. They need not travel for that.
  if (file) request("dataset_upload", { file: file.name, text: await file.slice(0, (8 << 20) + 1).text() });
}

function entries() {
  if (!shown.isThere || !shown.rows.length) return h("p.mb-quiet", {}, d("none", { folder: shown.folder }));
  const titles = ["name", "file", "format", "columns", "nodes", "act"].map((key) => d(`head.${key}`));
  return table("mb-table", titles, shown.rows.map(row));
}

function row({ name, entry, seen: versions, isUsed, lacking, differing }) {
  const one = typeof entry === "object" && entry !== null ? entry : {};
  const columns = Object.entries(one.columns ?? {}).map(([key, column]) => `${key}: ${column}`).join(", ");
  const faults = [lacking.length && d("lacking", { nodes: lacking.join(", ") }), differing.length && d("differing", { nodes: differing.join(", ") })].filter(Boolean);
  const use = h("button.mb-apply", { type: "button", "aria-pressed": String(isUsed), onclick: () => request("dataset_use", { name }) }, d(isUsed ? "unuse" : "use"));
  const edit = h("button.mb-apply", { type: "button", onclick: () => { open({ name, entry: one, previous: entry, seen: versions }); checked = null; redraw(); } }, d("edit"));
  return [h("span", { title: JSON.stringify(entry, null, 2) }, name), String(one.file_name ?? one.hf_hub_url ?? one.ms_hub_url ?? one.script_url ?? "?"),
    [one.formatting ?? "alpaca", one.ranking && d("ranking.short")].filter(Boolean).join(", "), columns || d("defaults"),
    faults.length ? [h("span.mb-bad", {}, `${faults.join("; ")}. `), h("span.mb-quiet", {}, d("mend"))] : d("same"), h("div.mb-dataset-acts", {}, use, edit)];
}

function form() {
  const isAlpaca = editing.formatting === "alpaca";
  const keys = [...COLUMNS[isAlpaca ? "alpaca" : "sharegpt"].filter((key) => !(editing.ranking && key === "response")), ...(editing.ranking ? PAIR : [])];
  const files = h("datalist", { id: "mb-dataset-columns" }, editing.there.map((column) => h("option", { value: column })));
  return h("fieldset.mb-dataset-form", {}, h("legend", {}, d(editing.isNew ? "form.new" : "form.edit", { name: editing.name })), files,
    h("div.mb-dataset-grid", {}, text(editing, "name", d("head.name"), !editing.isNew), text(editing, "file_name", d("head.file")), format(), ranking()),
    h("h4", {}, d("columns")), editing.there.length > 0 && h("p.mb-quiet", {}, d("there", { columns: editing.there.join(", ") })),
    h("div.mb-dataset-grid", {}, keys.map((key) => text(editing.columns, key, key, false, "mb-dataset-columns"))),
    !isAlpaca && [h("h4", {}, d("tags")), h("div.mb-dataset-grid", {}, TAGS.map((key) => text(editing.tags, key, key)))], acts());
}

function text(owner, key, label, isFixed = false, list = null) {
  return h("label", {}, h("span", {}, label), h("input", { type: "text", value: owner[key] ?? "", spellcheck: "false", autocomplete: "off",
    readonly: isFixed, list, "data-key": key, oninput: (event) => { owner[key] = event.target.value; } }));
}

function format() {
  const choose = (event) => { editing.formatting = event.target.value; redraw(); };
  return h("label", {}, h("span", {}, d("head.format")), h("select", { "data-key": "formatting", onchange: choose },
    ["alpaca", "sharegpt", "openai"].map((name) => h("option", { value: name, selected: name === editing.formatting }, name))));
}

function ranking() {
  const choose = (event) => { editing.ranking = event.target.checked; redraw(); };
  return h("label.mb-dataset-check", {}, h("input", { type: "checkbox", checked: editing.ranking, "data-key": "ranking", onchange: choose }), h("span", {}, d("ranking")));
}

// A column that the form does not show for this format must not stay in the entry.
function sent() {
  const isAlpaca = editing.formatting === "alpaca";
  const hidden = isAlpaca ? ["messages"] : ["prompt", "query", "response", "history"];
  const dropped = [...hidden, ...(editing.ranking ? ["response"] : PAIR)];
  const columns = { ...editing.columns, ...Object.fromEntries(dropped.map((key) => [key, ""])) };
  return { name: editing.name, previous: editing.previous, seen: editing.versions,
    form: { file_name: editing.file_name, formatting: editing.formatting, ranking: editing.ranking, columns, tags: editing.tags } };
}

function acts() {
  const cancel = h("button.mb-button", { type: "button", onclick: () => { editing = checked = null; redraw(); } }, d("cancel"));
  const remove = h("button.mb-button", { type: "button", onclick: () => { if (window.confirm(d("remove.sure", { name: editing.name }))) request("dataset_remove", sent()); } }, d("remove"));
  return h("div.mb-dataset-acts", {}, button("dataset_check", sent), button("dataset_save", sent), cancel, !editing.isNew && remove);
}

const checkView = () => h("div.mb-data-set", { role: "status" }, checked.faults.map(faultView));

export const datasetPanels = { dataset_info: draw };
Object.assign(fetchPanels, datasetPanels);
