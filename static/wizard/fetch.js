// Fetches data into the draft: a model's config.json from the hub or a node, the memory of the nodes, the size of the
// data set.
import { fill, h, table } from "../lib/dom.js";
import { t } from "../lib/words.js";
import { latestPayload, sendToServer } from "./channel.js";
import { goTo } from "./fields.js";
import { hostKeys } from "./host_keys.js";
import { drawProblem, noFigures } from "./problems.js";

let busy = null, modelId = "", last = {};

// This is made once: a payload after every edit must not remove the text that the user is typing.
export function panel(element, kinds, form) {
  let answer = element.querySelector(".mb-fetch-answer");
  if (!answer) {
    answer = h("div.mb-fetch-answer", { role: "status" });
    fill(element, h("div.mb-fetch.mb-actions", {}, form()), answer);
  }
  const result = latestPayload()?.fetched;
  if (result && result !== seen) settle(result);
  const isMine = kinds.includes(busy?.kind ?? result?.kind);
  for (const button of element.querySelectorAll(".mb-fetch button")) button.disabled = busy !== null;
  fill(answer, isMine && (busy ? progress() : resultView(result)));
}

let seen = null;
function settle(result) {
  seen = result;
  busy = null;
}

export function request(kind, more = {}) {
  if (busy) return;
  last = more;
  busy = { kind };
  sendToServer("fetch", { kind, ...more });
  redraw();
}

function redraw() {
  for (const [name, draw] of Object.entries(fetchPanels)) {
    const element = document.querySelector(`[data-panel="${name}"]`);
    if (element) draw(element);
  }
}

const progress = () => [h("span.mb-spinner", { "aria-hidden": "true" }),
  t(`wizard.fetch.${busy.kind}.busy`, { id: modelId })];

function resultView(result) {
  const isDone = Object.keys(result.note).length > 0;
  const waits = result.keys.length > 0;
  // An unknown host key is no error: the user confirms it below.
  const problems = result.problems.filter((problem) => !waits || problem.code !== "host_key_unknown");
  const isGood = !["done_faults", "done_no_estimate"].includes(result.done);
  return [isDone && h(isGood ? "p.mb-good" : "p", {}, t(`wizard.fetch.${result.kind}.${result.done}`, result.note)),
    result.table && h("div.mb-found", {}, table("mb-table", result.table.head, choosable(result.table))),
    problems.map((problem) => drawMissing({ ...problem, again: () => request(result.kind, last) })),
    waits && hostKeys(result.keys, () => request(result.kind, { ...last, accept: result.keys.map((key) => key.fingerprint) }))];
}

// If the rows of a table have edits, the first cell of a row is a button that applies its edit.
const choosable = ({ rows, edits }) => edits ? rows.map(([name, ...cells], row) => [h("button.mb-apply",
  { type: "button", onclick: () => sendToServer("apply", { edits: edits[row] }) }, name), ...cells]) : rows;

function drawMissing(problem) {
  if (problem.reason === "profile_remote_code")
    return drawProblem({ ...problem, choose: () => request("profile", { allow: true }) });
  if (problem.code !== "needed_for_launch") return drawProblem(problem);
  const open = () => goTo(problem.at, problem.step);
  return h("div.mb-problem", { "data-severity": "missing" },
    t("wizard.fetch.needs"), " ",
    h("button.mb-apply", { type: "button", onclick: open }, problem.label));
}

export function button(kind, more) {
  return h("button.mb-button", { type: "button", "data-fetch": kind,
    onclick: () => request(kind, more?.()) }, t(`wizard.fetch.${kind}`));
}

function drawModel(element) {
  panel(element, ["hub", "node", "profile"], modelForm);
  const needsProfile = noFigures(latestPayload() ?? {})?.code === "model_not_estimated";
  element.querySelector('[data-fetch="profile"]').hidden = !needsProfile;
}

function modelForm() {
  const keep = (event) => { modelId = event.target.value.trim(); };
  const enter = (event) => { if (event.key === "Enter") request("hub", { id: modelId }); };
  const input = h("input.mb-fetch-id", { type: "text", placeholder: "Qwen/Qwen3-8B", spellcheck: "false",
    autocomplete: "off", value: modelId, oninput: keep, onkeydown: enter });
  return [h("label", {}, h("span", {}, t("wizard.fetch.id")), input), button("hub", () => ({ id: modelId })),
    button("node"), button("profile")];
}

// With Slurm the nodes are not known: the login node is asked for the partitions.
function drawMemory(element) {
  panel(element, ["memory", "partitions"], () => [button("memory"), button("partitions")]);
  const hasScheduler = Boolean(latestPayload()?.data.scheduler);
  element.querySelector('[data-fetch="memory"]').hidden = hasScheduler;
  element.querySelector('[data-fetch="partitions"]').hidden = !hasScheduler;
}

const drawSamples = (element) => panel(element, ["samples", "data_preview"], () => [button("samples"),
  button("data_preview", () => ({ seed: Math.floor(Math.random() * 2 ** 31) }))]);

const SPEED = ["speed", "keep_speed", "forget_calibration"];
function drawSpeed(element) {
  panel(element, SPEED, () => [button("speed"), h("p.mb-quiet", {}, t("wizard.fetch.speed.slurm"))]);
  const hasScheduler = Boolean(latestPayload()?.data.scheduler);
  element.querySelector('[data-fetch="speed"]').hidden = hasScheduler;
  element.querySelector(".mb-fetch .mb-quiet").hidden = !hasScheduler;
}

export const fetchPanels = { fetch_model: drawModel, fetch_memory: drawMemory, fetch_samples: drawSamples,
  fetch_speed: drawSpeed };
