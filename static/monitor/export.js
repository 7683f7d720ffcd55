// After a run: its model in the Hugging Face format, exported on a node, and the commands that serve it.
import { copyButton, setCommands } from "../lib/commands.js";
import { h, keyed, text } from "../lib/dom.js";
import { w } from "../lib/words.js";

export function Export(begin) {
  const words = h("p");
  const fix = h("p.mb-quiet");
  const serve = h("div");
  const button = h("button.mb-button", { type: "button", onclick: () => {
    button.disabled = true;
    begin();
  } }, w("export.begin"));
  const status = h("div.mbm-compare-lines", { role: "status" }, words, fix, serve);
  const root = h("section.mb-card.mbm-compare", { "aria-label": w("export.title"), hidden: true }, status, button);

  function take(state) {
    root.hidden = !state;
    if (!state) return;
    button.hidden = state.phase === "done" || state.phase === "working";
    button.disabled = false;
    text(button, w(state.phase === "failed" ? "export.again" : "export.begin"));
    setCommands(words, { offer: w("export.lead"), working: w("export.working"), done: state.words,
      failed: state.problem?.message }[state.phase]);
    setCommands(fix, { offer: "", working: state.line, done: w("export.serve"), failed: state.problem?.fix }[state.phase]);
    keyed(serve, state.serve ?? [], (command) => command, (command) => h("div.mbm-serve", {},
      h("pre.mbm-lines", { tabindex: "0" }, command), copyButton(command)), () => {});
  }

  return { root, take };
}
