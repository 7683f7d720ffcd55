// A run that goes on without a step: since when, who the others wait for, and what can be done before it is ended; and
// one that goes on more slowly.
import { setCommands } from "../lib/commands.js";
import { h, keyed, text } from "../lib/dom.js";
import { number, whole } from "../lib/format.js";
import { duration, moment } from "../lib/time.js";
import { w } from "../lib/words.js";

const FALLBACK = { kind: "none" };

export function Hang(now, showLog) {
  const title = h("strong");
  // Hidden from screen readers, which would read it every second.
  const lasts = h("span.mb-quiet", { "aria-hidden": "true" });
  const usual = h("p");
  const list = h("ul.mbm-suspects");
  const fix = h("p.mb-quiet");
  const button = h("button.mbm-chip", { type: "button", onclick: () => showLog(shown.suspects[0].node, logOf(shown.suspects[0])) });
  const root = h("section.mbm-cause.mbm-standstill", { role: "alert", hidden: true },
    h("div", {}, h("p", {}, title, " ", lasts), usual), button, list, fix);
  let shown = null;

  function take(hang) {
    shown = hang;
    root.hidden = !hang;
    if (!hang) return;
    const { suspects } = hang;
    text(title, w(`standstill.${hang.title}`, { at: moment(hang.since) }));
    text(usual, known(hang));
    keyed(list, suspects.length ? suspects : [FALLBACK], keyOf, () => h("li", {}, h("span"), h("small")), tell);
    text(fix, w("standstill.fix", { at: moment(hang.ends_at, false) }));
    button.hidden = !suspects.length;
    if (suspects.length) text(button, w("cause.log", { node: suspects[0].address }));
    age();
  }

  function age() {
    if (shown) text(lasts, w("standstill.lasts", { time: duration(now() - shown.since) }));
  }

  return { root, take, age };
}

function known({ step, step_s: seconds, wrote, is_due: isDue }) {
  if (step === null) return wrote === null ? "" : w("standstill.wrote", { at: moment(wrote, false) });
  const last = w("standstill.usual", { step: whole(step), seconds: number(seconds, 3) });
  return isDue ? `${last} ${w("standstill.due")}` : last;
}

// A title, lines and what to do, as text from the server (they contain no time of day): a run whose steps take longer
// than before, or nodes that the server cannot monitor.
export function Notice() {
  const title = h("strong");
  const list = h("ul.mbm-suspects");
  const fix = h("p.mb-quiet");
  const root = h("section.mbm-cause.mbm-standstill", { role: "status", hidden: true }, h("div", {}, title), list, fix);

  function take(notice) {
    root.hidden = !notice;
    if (!notice) return;
    text(title, notice.title);
    keyed(list, notice.lines, (line) => line, () => h("li"), setCommands);
    setCommands(fix, notice.fix);
  }

  return { root, take };
}

const keyOf = (one) => [one.kind, one.node, one.rank, one.gpu].join();

const logOf = (one) => Number.isInteger(one.rank) ? `rank${one.rank}.log` : null;

function tell(item, one) {
  const node = `${one.node} · ${one.address}`;
  const values = { ...one, node, at: moment(one.since, false), others: moment(one.others, false), step: whole(one.step),
    usual: whole(one.usual) };
  text(item.firstChild, w(`standstill.${one.kind}`, values));
  const help = [one.ids && w("standstill.stopped", values), one.waits && w("standstill.waits")].filter(Boolean);
  setCommands(item.lastChild, help.join(" "));
}
