// A dialog that shows which checkpoints of a run are complete on all nodes, and acts on the chosen one.
import { h, text } from "../lib/dom.js";
import { whole } from "../lib/format.js";
import { w } from "../lib/words.js";
import { isLost } from "../web/connection.js";
import { go } from "../web/shell.js";
import { latestPayload, sendToServer } from "../wizard/channel.js";

// The keys of its texts are monitor.<name>. `requestSearch` starts the search on the nodes. `go(step, dialog, fix)` acts
// and closes the dialog; step 0 is the beginning, and `fix` is what `open` got. With `needsNodes`, nothing can be chosen before the nodes have answered,
// not even the beginning.
export function Checkpoints(name, { requestSearch, go, needsNodes = false, kind = "" }) {
  const button = h(`button.mb-button${kind}`, { type: "button", hidden: true, onclick: () => open() }, w(name));
  const heading = h("h3", { id: `mbm-${name}` }, w(`${name}.title`));
  const words = h("p", { role: "status" });
  const advice = h("p.mb-quiet", { hidden: true });
  const list = h("div.mbm-checkpoints", { role: "radiogroup", "aria-labelledby": `mbm-${name}` });
  const no = h("button.mb-button", { type: "button", autofocus: true, onclick: () => root.close() }, w("resume.no"));
  const yes = h("button.mb-button.mb-primary", { type: "button", onclick: () => go(Number(chosen().value), dialog, fix) },
    w(`${name}.go`));
  const root = h(`dialog.mbm-ask.mbm-${name}`, { "aria-labelledby": `mbm-${name}` }, heading, words, advice, list,
    h("p.mb-quiet", {}, w(`${name}.note`)), h("div.mbm-buttons", {}, no, yes));
  const chosen = () => list.querySelector("input:checked");
  let drawn = "", fix = null;

  // `number`: a change of the job that the cause of the failure offers.
  function open(number = null) {
    if (isLost()) return;
    fix = number;
    drawn = "";
    draw({ phase: "looking" });
    root.showModal();
    requestSearch();
  }

  function take(mayOpen, search) {
    button.hidden = !mayOpen;
    if (!mayOpen && root.open) root.close();
    if (root.open && search) draw(search);
  }

  function draw(search) {
    const state = JSON.stringify(search);
    if (state === drawn || search.phase === "offer") return;
    drawn = state;
    const { checkpoints = [], newest = null } = search;
    show(search.phase === "failed" ? search.problem : { fix: "",
      message: w(search.phase === "looking" ? "resume.looking" : newest === null ? "resume.none" : "resume.found") });
    const start = { step: 0, why: "" };
    const isKnown = search.phase === "found" || (search.phase === "failed" && !needsNodes);
    list.replaceChildren(...(isKnown ? [...checkpoints, start].map((checkpoint) => row(checkpoint, newest ?? 0)) : []));
    yes.disabled = !chosen();
  }

  function show({ message, fix: how }) {
    text(words, message);
    text(advice, how);
    advice.hidden = !how;
  }

  function row({ step, why }, newest) {
    const input = h("input", { type: "radio", name: `mbm-${name}-from`, value: step, checked: step === newest,
      disabled: Boolean(why), onchange: () => { yes.disabled = false; } });
    return h("label", { "data-flawed": why ? "" : null }, input,
      h("span", {}, step ? w("resume.step", { step: whole(step) }) : w("resume.start")),
      h("small.mb-quiet", {}, why || (step && step === newest ? w("resume.newest") : "")));
  }

  const dialog = {
    isOpen: () => root.open,
    close: () => root.close(),
    // Shows a message while the chosen action runs.
    wait(message) {
      show({ message, fix: "" });
      yes.disabled = true;
    },
    fail(problem) {
      show(problem);
      yes.disabled = !chosen();
    },
  };

  return { button, root, open, take };
}

// Makes the wizard read the run's job, with the change number `fix` or calibrated with the run, and then shows the
// wizard.
export function openInWizard(run, step, dialog, fix = null, measured = false) {
  const before = latestPayload()?.fetched;
  dialog.wait(w("continue.opening"));
  document.addEventListener("megaboard:drawn", onDrawn);
  sendToServer("fetch", { kind: "continue", run, checkpoint: step, fix, measured });

  function onDrawn() {
    const fetched = latestPayload().fetched;
    if (fetched === before || fetched?.kind !== "continue") return;
    document.removeEventListener("megaboard:drawn", onDrawn);
    if (!dialog.isOpen()) return;
    if (fetched.problems.length) {
      dialog.fail(fetched.problems[0]);
      return;
    }
    dialog.close();
    go("plan");
  }
}
