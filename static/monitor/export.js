// After a run: its model for Hugging Face, made on a node, and the commands that serve it.
import { h, text } from "../lib/dom.js";
import { w } from "../lib/words.js";

export function Export(begin) {
  const words = h("p");
  const fix = h("p.mb-quiet");
  const commands = h("div");
  const button = h("button.mb-button", { type: "button", onclick: () => {
    button.disabled = true;
    begin();
  } }, w("export.begin"));
  const told = h("div.mbm-compare-lines", { role: "status" }, words, fix, commands);
  const root = h("section.mb-card.mbm-compare", { "aria-label": w("export.title"), hidden: true }, told, button);

  function take(found) {
    root.hidden = !found;
    if (!found) return;
    button.hidden = found.phase === "done" || found.phase === "working";
    button.disabled = false;
    text(button, w(found.phase === "failed" ? "export.again" : "export.begin"));
    text(words, { offer: w("export.lead"), working: w("export.working"), done: found.words,
      failed: found.problem?.message }[found.phase]);
    text(fix, { offer: "", working: found.line, done: w("export.serve"), failed: found.problem?.fix }[found.phase]);
    const wanted = found.serve || [];
    while (commands.children.length > wanted.length) commands.lastChild.remove();
    wanted.forEach((command, place) => {
      if (!commands.children[place]) commands.append(h("pre.mbm-lines", { tabindex: "0" }));
      text(commands.children[place], command);
    });
  }

  return { root, take };
}
