// A chat with the models of a run: what was trained, and the model that it began with, side by side.
import { setCommands } from "../lib/commands.js";
import { attribute, fill, h } from "../lib/dom.js";
import { whole } from "../lib/format.js";
import { w } from "../lib/words.js";
import { Answers } from "./chat_answers.js";

const WORKING = ["waiting", "starting", "loading", "unreachable", "stopping"];

// `act(name, values)` of monitor.js starts and ends the chat on the server.
export function Chat(act) {
  const tuned = choice("tuned"), base = choice("base");
  const from = h("select", { "aria-label": w("chat.checkpoint"), onfocus: () => {
    if (!asked) act("checkpoints");
    asked = true;
  } });
  const begin = h("button.mb-button.mb-primary", { type: "button", onclick: start }, w("chat.begin"));
  const offer = h("div.mbm-chat-offer", {}, tuned.root, base.root,
    h("label.mbm-check", {}, w("chat.checkpoint"), from), begin);
  const words = h("p"), fix = h("p.mb-quiet");
  const status = h("div.mbm-compare-lines", { role: "status" }, words, fix);
  const end = h("button.mb-button.mbm-danger", { type: "button", onclick: () => {
    end.disabled = true;
    act("end_chat", { chat: shown.run });
  } }, w("chat.end"));
  const log = h("a.mbm-chip", { hidden: true }, w("chat.page"));
  const answers = Answers();
  const root = h("section.mb-card.mbm-chat", { "aria-label": w("chat.title"), hidden: true },
    h("header", {}, h("h3", {}, w("chat.title")), h("div.mbm-buttons", {}, log, end)), status, offer, answers.root);
  let shown = null, asked = false;

  function start() {
    begin.disabled = true;
    const models = [tuned, base].filter((model) => model.input.checked).map((model) => model.name);
    act("chat", { models, checkpoint: Number(from.value) });
  }

  function choice(name) {
    const input = h("input", { type: "checkbox", checked: true, onchange: () => {
      begin.disabled = !tuned.input.checked && !base.input.checked;
    } });
    return { name, input, root: h("label.mbm-check", {}, input, w(`chat.model.${name}`)) };
  }

  // `state` is the newest chat, `found` are the checkpoints that the page has found on the nodes.
  function take(state, found) {
    root.hidden = !state;
    if (!state) return;
    const isOver = state.phase === "offer" || state.phase === "ended";
    if (shown?.phase !== state.phase) begin.disabled = end.disabled = false;
    shown = state;
    attribute(root, "data-phase", state.phase);
    offer.hidden = !isOver;
    end.hidden = isOver || state.phase === "stopping";
    log.hidden = !state.run;
    if (state.run) log.href = `#runs/${state.run}`;
    takeCheckpoints(found);
    const { message, how } = wordsOf(state);
    setCommands(words, message);
    setCommands(fix, how);
    answers.take(state);
  }

  function takeCheckpoints(found) {
    const steps = (found?.checkpoints ?? []).filter((row) => !row.why).map((row) => row.step);
    if (from.dataset.steps === String(steps)) return;
    from.dataset.steps = String(steps);
    const chosen = from.value;
    fill(from, h("option", { value: 0 }, w("chat.newest")),
      steps.map((step) => h("option", { value: step }, w("resume.step", { step: whole(step) }))));
    if (steps.includes(Number(chosen))) from.value = chosen;
  }

  return { root, take, close: answers.close };
}

function wordsOf(state) {
  if (state.phase === "offer") return { message: w("chat.lead"), how: "" };
  if (WORKING.includes(state.phase)) {
    const how = state.phase === "loading" && !state.is_ours ? w("chat.not_ours") : state.why?.message ?? "";
    return { message: w(`chat.${state.phase}`, state), how };
  }
  if (state.phase === "ready") {
    const untested = [...new Set(Object.values(state.backends))].filter((backend) => backend !== "huggingface");
    return { message: w("chat.ready", state), how: untested.length ? w("chat.untested", { backends: untested.join(", ") }) : "" };
  }
  const proof = state.left === 0 ? w("chat.proof", state) : w("chat.unproved", state);
  return { message: [state.why?.message, proof].filter(Boolean).join(" "), how: state.why?.fix ?? w("chat.lead") };
}
