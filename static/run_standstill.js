// A run that goes on without a step: since when, who the others wait for, and what can be done before it is ended; and
// one that goes on more slowly.
(() => {
  const { duration, el, keyed, moment, number, setCommands, text, w, whole } = window.Megaboard.live;
  const FALLBACK = { kind: "none" };

  function Standstill(now, showLog) {
    const title = el("strong");
    // Not for those who listen: it would be told every second.
    const lasts = el("span.mb-quiet", { "aria-hidden": "true" });
    const usual = el("p");
    const list = el("ul.mbm-suspects");
    const fix = el("p.mb-quiet");
    const button = el("button.mbm-chip", { type: "button", onclick: () => showLog(shown.suspects[0].node, logOf(shown.suspects[0])) });
    const root = el("section.mbm-cause.mbm-standstill", { role: "alert", hidden: true },
      el("div", {}, el("p", {}, title, " ", lasts), usual), button, list, fix);
    let shown = null;

    function take(found) {
      shown = found;
      root.hidden = !found;
      if (!found) return;
      const { suspects } = found;
      text(title, w(`standstill.${found.title}`, { at: moment(found.since) }));
      text(usual, known(found));
      keyed(list, suspects.length ? suspects : [FALLBACK], keyOf, () => el("li", {}, el("span"), el("small")), tell);
      text(fix, w("standstill.fix", { at: moment(found.ends_at, false) }));
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
  function Notice() {
    const title = el("strong");
    const list = el("ul.mbm-suspects");
    const fix = el("p.mb-quiet");
    const root = el("section.mbm-cause.mbm-standstill", { role: "status", hidden: true }, el("div", {}, title), list, fix);

    function take(found) {
      root.hidden = !found;
      if (!found) return;
      text(title, found.title);
      keyed(list, found.lines, (line) => line, () => el("li"), setCommands);
      setCommands(fix, found.fix);
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

  window.Megaboard = Object.assign(window.Megaboard || {}, { Standstill, Notice });
})();
