// An evaluation of the models of a run: answers to held-out rows beside the references, and metrics of all rows.
import { setCommands } from "../lib/commands.js";
import { attribute, fill, h, table, text } from "../lib/dom.js";
import { number } from "../lib/format.js";
import { w } from "../lib/words.js";

// `act(name, values)` of monitor.js starts and stops the evaluation on the server.
export function Evaluation(act) {
  const rows = count("rows", 200, 20), tokens = count("max_tokens", 2048, 128);
  const begin = h("button.mb-button.mb-primary", { type: "button", onclick: () => {
    begin.disabled = true;
    act("evaluate", { models: ["tuned", "base"], rows: Number(rows.input.value), max_tokens: Number(tokens.input.value) });
  } }, w("evaluation.begin"));
  const stop = h("button.mb-button.mbm-danger", { type: "button", onclick: () => {
    stop.disabled = true;
    act("end_chat", { chat: shown.run });
  } }, w("evaluation.stop"));
  const log = h("a.mbm-chip", {}, w("chat.page")), csv = h("a.mbm-chip", { download: "" }, w("evaluation.csv"));
  const words = h("p"), note = h("p.mb-quiet"), loss = h("p.mb-quiet"), lack = h("p.mb-quiet", { hidden: true });
  const status = h("div.mbm-compare-lines", { role: "status" }, words, note, loss, lack);
  const offer = h("div.mbm-chat-offer", {}, rows.root, tokens.root, begin);
  const result = h("div.mbm-evaluation");
  const root = h("section.mb-card.mbm-chat", { "aria-label": w("evaluation.title"), hidden: true },
    h("header", {}, h("h3", {}, w("evaluation.title")), h("div.mbm-buttons", {}, csv, log, stop)), status, offer, result);
  let shown = null, drawn = null;

  function count(name, max, value) {
    const input = h("input", { type: "number", min: 1, max, value });
    return { input, root: h("label.mbm-check", {}, w(`evaluation.${name}`), input) };
  }

  function take(state) {
    root.hidden = !state;
    if (!state) return;
    if (shown?.phase !== state.phase) begin.disabled = stop.disabled = false;
    shown = state;
    attribute(root, "data-phase", state.phase);
    const isOver = state.phase === "offer" || state.phase === "ended";
    offer.hidden = !isOver;
    stop.hidden = isOver || state.state === "stopping";
    log.hidden = !state.run;
    if (state.run) log.href = `#runs/${state.run}`;
    csv.hidden = !state.has_result;
    if (state.has_result) csv.href = `/api/evaluation/${encodeURIComponent(state.run)}.csv`;
    const [sentence, more] = wordsOf(state);
    setCommands(words, sentence);
    setCommands(note, more);
    text(loss, state.loss === null ? "" : w("evaluation.loss", { loss: number(state.loss, 4), perplexity: number(state.perplexity, 4) }));
    takeNote(state.phase === "working" ? state.note : null);
    draw(state);
  }

  // What the node lacks for the metrics, while the models still answer. The result says it again.
  function takeNote(lacking) {
    lack.hidden = !lacking;
    if (lacking) setCommands(lack, `${lacking.message} ${lacking.fix}`);
  }

  // The rows are not in the polls: they may be megabytes.
  async function draw({ run, models, has_result: hasResult }) {
    const next = hasResult ? run : null;
    if (next === drawn) return;
    drawn = next;
    fill(result);
    if (!next) return;
    const response = await fetch(`/api/evaluation/${encodeURIComponent(run)}`);
    if (response.ok && drawn === run) fill(result, resultOf(models, await response.json()));
  }

  return { root, take };
}

function wordsOf(state) {
  const data = w(`evaluation.data.${state.data}`);
  if (state.phase === "offer") return [w("evaluation.lead"), data];
  if (state.phase !== "ended") return [w(`evaluation.${state.phase}`, state), state.why?.message ?? state.line];
  const proof = state.left === 0 ? w("chat.proof.short", state) : "";
  if (!state.has_result) return [state.why?.message ?? w("evaluation.stopped"), [state.why?.fix, proof].filter(Boolean).join(" ")];
  return [data, proof];
}

function resultOf(models, result) {
  const names = models.map((model) => w(`chat.model.${model}`));
  const metrics = [...new Set(models.flatMap((model) => Object.keys(result.metrics[model] ?? {})))];
  const values = metrics.map((metric) => [metric.toUpperCase(), ...models.map((model) => number(result.metrics[model][metric], 4))]);
  const answers = result.rows.map((row, place) => [String(place + 1), row.prompt, row.reference, ...models.map((model) => row.answers[model] ?? "")]);
  return [
    result.missing.length ? h("p.mbm-bad", {}, w("evaluation.missing", { packages: result.missing.join(" ").replaceAll("_", "-") })) : null,
    metrics.length ? table("mbm-table", [w("evaluation.metric"), ...names], values, w("evaluation.metrics")) : null,
    table("mbm-table mbm-rows", [w("evaluation.row"), w("evaluation.prompt"), w("evaluation.reference"), ...names], answers),
  ];
}
