// A run without a new step: since when, which ranks the others wait for, and what the user can do. Also a run that has
// become slower.
import { setCommands } from "../lib/commands.js";
import { h, keyed, text } from "../lib/dom.js";
import { number, whole } from "../lib/format.js";
import { duration, moment } from "../lib/time.js";
import { w } from "../lib/words.js";

const FALLBACK = { kind: "none" };

export function Hang(now, showLog) {
  const title = h("strong");
  // This is hidden from screen readers, because they would read it every second.
  const lasts = h("span.mb-quiet", { "aria-hidden": "true" });
  const usual = h("p");
  const list = h("ul.mbm-suspects");
  const fix = h("p.mb-quiet");
  const button = h("button.mbm-chip", { type: "button", onclick: () => showLog(shown.suspects[0].node, logOf(shown.suspects[0])) });
  const root = h("section.mbm-cause.mbm-finding", { role: "alert", hidden: true },
    h("div", {}, h("p", {}, title, " ", lasts), usual), button, list, fix);
  let shown = null;

  function take(hang) {
    shown = hang;
    root.hidden = !hang;
    if (!hang) return;
    const { suspects } = hang;
    text(title, w(`hang.${hang.title}`, { at: moment(hang.since) }));
    text(usual, lastStepWords(hang));
    keyed(list, suspects.length ? suspects : [FALLBACK], keyOf, () => h("li", {}, h("span"), h("small")), updateSuspect);
    text(fix, w("hang.fix", { at: moment(hang.ends_at, false) }));
    button.hidden = !suspects.length;
    if (suspects.length) text(button, w("cause.log", { node: suspects[0].address }));
    age();
  }

  function age() {
    if (shown) text(lasts, w("hang.lasts", { time: duration(now() - shown.since) }));
  }

  return { root, take, age };
}

function lastStepWords({ step, step_s: seconds, wrote, is_due: isDue }) {
  if (step === null) return wrote === null ? "" : w("hang.wrote", { at: moment(wrote, false) });
  const last = w("hang.usual", { step: whole(step), seconds: number(seconds, 3) });
  return isDue ? `${last} ${w("hang.due")}` : last;
}

// A title, lines and a fix as text from the server, for a run whose steps take longer than before and for nodes that
// the server cannot monitor. The text contains no time of day.
export function Notice() {
  const title = h("strong");
  const list = h("ul.mbm-suspects");
  const fix = h("p.mb-quiet");
  const root = h("section.mbm-cause.mbm-finding", { role: "status", hidden: true }, h("div", {}, title), list, fix);

  function take(notice) {
    root.hidden = !notice;
    if (!notice) return;
    text(title, notice.title);
    keyed(list, notice.lines, (line) => line, () => h("li"), setCommands);
    setCommands(fix, notice.fix);
  }

  return { root, take };
}

const keyOf = (suspect) => [suspect.kind, suspect.node, suspect.rank, suspect.gpu].join();

const logOf = (suspect) => Number.isInteger(suspect.rank) ? `rank${suspect.rank}.log` : null;

function updateSuspect(item, suspect) {
  const values = { ...suspect, node: suspect.names, at: moment(suspect.since, false), others: moment(suspect.others, false), step: whole(suspect.step),
    usual: whole(suspect.usual) };
  text(item.firstChild, w(`hang.${suspect.kind}`, values));
  const help = [suspect.ids && w("hang.stopped", values), suspect.waits && w("hang.waits")].filter(Boolean);
  setCommands(item.lastChild, help.join(" "));
}
