// One run: its head with progress and the ways to stop it, its charts, nodes, events and logs.
(() => {
  const { attribute, badge, duration, el, keyed, moment, number, setBadge, setCommands, text, w, whole } = window.Megaboard.live;
  const FACTS = ["elapsed", "eta", "tokens_per_s", "step_s", "loss"];
  const BESIDE = ["elapsed", "eta", "tokens_per_s"];

  // link: { now(), ask(), act(name, values), wantsResume(id) } of monitor.js.
  function Run(id, link) {
    const M = window.Megaboard;
    const parts = {
      head: Head(id, link),
      trouble: Trouble((rank, file) => parts.logs.show(rank, file), (keys) => link.act("accept", { keys }), () => link.act("resume")),
      standstill: M.Standstill(link.now, (rank, file) => parts.logs.show(rank, file)),
      slowdown: M.Notice(),
      unseen: M.Notice(),
      compare: M.Compare(() => link.act("calibrate")),
      export: M.Export(() => link.act("export")),
      charts: M.Charts(link.ask),
      usage: M.Usage(id, link.ask),
      nodes: M.Nodes(link.now),
      events: Events(),
      logs: M.Logs(link.ask),
    };
    const below = el("div.mbm-below", {}, parts.logs.root, parts.events.root);
    let head = {};
    const root = el("div.mbm-run", { "data-run": id }, parts.head.root, parts.unseen.root, parts.standstill.root,
      parts.slowdown.root, parts.trouble.root,
      parts.charts.root, parts.compare.root, parts.usage.root, parts.nodes.root, parts.export.root, below);

    function take(bundle) {
      // Of a run that is unknown or cannot be read there is nothing to show, and nothing to press.
      parts.head.erase.take(bundle.erase);
      if (bundle.error || bundle.head) root.classList.toggle("mbm-nothing", !bundle.head && !head.state);
      if (bundle.head || bundle.progress || "compare" in bundle) takeHead(bundle);
      if (bundle.head) parts.trouble.take(bundle.head);
      if (bundle.head) parts.export.take(bundle.head.export);
      if (bundle.head) parts.logs.takeAttempts(bundle.head.attempt);
      if (bundle.head?.cause) parts.logs.prefer(bundle.head.cause);
      if ("standstill" in bundle) parts.standstill.take(bundle.standstill);
      if ("slowdown" in bundle) parts.slowdown.take(bundle.slowdown);
      if ("unseen" in bundle) parts.unseen.take(bundle.unseen);
      if (bundle.nodes) parts.nodes.take(bundle.nodes);
      if (bundle.nodes) parts.logs.takeNodes(bundle.nodes);
      if (bundle.nodes) parts.usage.takeNodes(bundle.nodes);
      parts.usage.take(bundle.usage);
      if (bundle.events) parts.events.take(bundle.events);
      parts.charts.take(id, bundle.points, bundle.detail);
      parts.charts.root.hidden = (head.is_final || !head.attempt) && parts.charts.isEmpty();
      parts.logs.take(bundle.log);
      parts.logs.root.hidden = !head.attempt;
    }

    // What seldom changes is not sent with every step.
    function takeHead(bundle) {
      const { compare = head.compare } = bundle;
      head = { ...head, ...bundle.head, ...bundle.progress, compare };
      parts.head.take(head);
      parts.compare.take(compare);
      // What comes next after a run that has finished; otherwise its course matters more.
      const next = head.state === "finished" ? parts.charts.root : below;
      if (parts.export.root.nextSibling !== next) next.before(parts.export.root);
    }

    return {
      root,
      take,
      charts: parts.charts,
      usage: parts.usage,
      wanted: () => ({ points: parts.charts.wanted(id), detail: parts.charts.wantedDetail(), log: parts.logs.wanted(),
        usage: parts.usage.wanted(), ...parts.head.erase.wanted() }),
      everySecond() {
        parts.head.age();
        parts.nodes.age();
        parts.standstill.age();
      },
      close() {
        parts.charts.close();
        parts.usage.close();
      },
    };
  }

  function Head(id, link) {
    const title = el("h2", { tabindex: "-1" });
    const state = badge("state", "queued");
    const save = el("button.mb-button", { type: "button", onclick: () => link.act("save") }, w("stop.save"));
    const stop = el("button.mb-button.mbm-danger", { type: "button", onclick: () => (shown.is_waiting || shown.is_watched ? link.act("stop") : ask.open(shown)) }, w("stop.now"));
    const about = el("p.mbm-about.mb-quiet");
    const bar = el("div.mbm-bar", { role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100",
      "aria-label": w("progress") }, el("i"));
    const told = el("div.mbm-progress-words", {}, el("span"), el("span"));
    const facts = el("dl.mbm-facts", {}, ...FACTS.map((name) => el("div", {}, el("dt", {}, w(`fact.${name}`)), el("dd"),
      BESIDE.includes(name) ? el("dd.mbm-beside.mb-quiet", { "data-beside": name }) : null)));
    const spoken = el("p.mbm-spoken", { role: "status" });
    const ask = Ask(() => link.act("stop"));
    const { Checkpoints, openInWizard } = window.Megaboard, look = () => link.act("checkpoints");
    const resume = Checkpoints("resume", { look, needsNodes: true, kind: ".mb-primary", go(step, dialog) {
      dialog.close();
      link.act("resume", { step });
    } });
    const again = el("button.mb-button.mb-primary", { type: "button", title: w("queue.again.label"),
      onclick: () => link.act("resume") }, w("queue.again"));
    const more = Checkpoints("continue", { look, go: (step, dialog) => openInWizard(id, step, dialog) });
    const erase = window.Megaboard.DeleteDialog(link, () => window.Megaboard.go("runs"));
    const remove = el("button.mb-button", { type: "button", onclick: () => erase.open(id) }, w("delete"));
    const attempts = window.Megaboard.Attempts((restarts) => link.act("restarts", { restarts }));
    const root = el("header.mbm-head", {},
      el("a.mbm-back", { href: "#runs", "data-go": "runs" }, `← ${w("runs")}`),
      el("div.mbm-title", {}, title, state, el("div.mbm-buttons", {}, remove, more.button, resume.button, again, save, stop)), about, attempts.root,
      el("div.mb-card.mbm-progress", {}, told, bar, facts), spoken, ask.root, resume.root, more.root, erase.root);
    let shown = null;
    let wantsResume = link.wantsResume(id);

    function take(head) {
      const changed = shown && shown.state !== head.state;
      shown = head;
      text(title, head.name);
      setBadge(state, "state", head.state);
      if (changed) text(spoken, w("state.spoken", { name: head.name, state: w(`state.${head.state}`) }));
      text(about, w(head.attempt ? "about" : "about.unstarted", { id, engine: head.engine, attempt: head.attempt, nodes: head.nodes, started: moment(head.started ?? head.created) }));
      save.hidden = head.is_final || head.is_waiting || head.is_watched;
      stop.hidden = head.is_final;
      remove.hidden = !head.can_delete;
      text(stop, w(head.is_waiting ? "queue.cancel" : head.is_watched ? "stop.watching" : "stop.now"));
      resume.take(head.can_resume && head.attempt > 0, head.resume);
      again.hidden = !head.can_resume || head.attempt > 0 || head.warnings.length > 0;
      more.take(head.can_continue, head.resume);
      attempts.take(head);
      if (wantsResume && head.can_resume) resume.open();
      wantsResume = false;
      save.disabled = !head.can_save;
      stop.disabled = !head.can_stop;
      text(save, w(head.is_saving ? "stop.saving" : "stop.save"));
      progress(head);
      age();
      if (!head.can_stop) ask.close();
    }

    function progress(head) {
      const waits = head.preparing;
      const share = waits ? waits.share : head.total ? Math.min(1, (head.step ?? 0) / head.total) : 0;
      const percent = Math.floor(100 * share);
      bar.firstChild.style.width = `${100 * share}%`;
      attribute(bar, "data-state", head.state);
      attribute(bar, "aria-valuenow", waits || head.total ? percent : null);
      const steps = { step: whole(head.step ?? 0), total: whole(head.total) };
      const before = head.is_final ? "progress.none" : head.is_waiting ? "progress.queued"
        : ["preflight", "starting"].includes(head.state) ? "progress.starting" : "progress.waiting";
      const words = waits ? waits.text : head.total ? w("progress.steps", steps) : w(before);
      text(told.firstChild, words);
      text(told.lastChild, waits || head.total ? w("percent", { percent }) : "");
      attribute(bar, "aria-valuetext", words);
    }

    function age() {
      if (!shown) return;
      const speed = shown.tokens_per_s === null ? "–" : whole(shown.tokens_per_s);
      const step = shown.step_s === null ? "–" : w("seconds", { seconds: number(shown.step_s, 3) });
      const values = [shown.elapsed === null ? "–" : duration(elapsed(...shown.elapsed)),
        shown.eta_s === null ? "–" : duration(shown.eta_s), speed, step, number(shown.loss)];
      const predicted = shown.compare?.predicted_tokens_per_s ?? null;
      const beside = predicted === null ? "" : w("fact.predicted", { tokens: whole(Number(predicted.toPrecision(2))) });
      values.forEach((value, place) => text(facts.children[place].children[1], value));
      text(facts.children[0].lastChild, shown.attempt > 1 ? w("fact.attempts", { count: shown.attempt }) : "");
      text(facts.children[1].lastChild, until());
      text(facts.children[2].lastChild, beside);
    }

    function elapsed(done, since) {
      return done + (since === null ? 0 : Math.max(0, link.now() - since));
    }

    // By the clock, as whoever plans the day asks; another day with its date.
    function until() {
      if (shown.eta_s === null) return "";
      const end = link.now() + shown.eta_s, isToday = moment(end).slice(0, 10) === moment(link.now()).slice(0, 10);
      return w("fact.until", { at: moment(end, !isToday).slice(0, -3) });
    }

    return { root, take, age, erase };
  }

  // Asks once more before a run is ended without a checkpoint; the safe answer has the focus.
  function Ask(yes) {
    const words = el("p");
    const no = el("button.mb-button", { type: "button", autofocus: true, onclick: () => root.close() }, w("stop.keep"));
    const sure = el("button.mb-button.mbm-danger", { type: "button", onclick: () => {
      root.close();
      yes();
    } }, w("stop.sure"));
    const heading = el("h3", { id: "mbm-ask" }, w("stop.title"));
    const root = el("dialog.mbm-ask", { "aria-labelledby": "mbm-ask" }, heading, words, el("div.mbm-buttons", {}, no, sure));
    return {
      root,
      close: () => root.open && root.close(),
      open(head) {
        if (window.Megaboard.isLost()) return;
        text(words, w("stop.words", { name: head.name, nodes: head.nodes }));
        root.showModal();
      },
    };
  }

  // Why the run failed, what to do, the last lines that say so, and the proof that nothing is left running; the warnings
  // that kept it from starting, which are accepted just as they are, or seen to and looked for again.
  function Trouble(showLog, accept, again) {
    const message = el("strong");
    const fix = el("p");
    const last = el("p.mb-quiet");
    const lines = el("pre.mbm-lines", { tabindex: "0" });
    const more = el("details", {}, el("summary"), lines);
    const button = el("button.mbm-chip", { type: "button", onclick: () => showLog(cause.rank, cause.file) });
    const list = el("ul.mbm-warnings");
    const yes = el("button.mb-button.mb-primary", { type: "button", onclick: () => accept(warnings.map((one) => one.key)) },
      w("warnings.accept"));
    const mended = el("button.mb-button", { type: "button", onclick: again }, w("warnings.again"));
    const unaccepted = el("div.mbm-unaccepted", { hidden: true }, list, el("div.mbm-buttons", {}, yes, mended));
    const why = el("div.mbm-cause", { role: "alert", hidden: true }, el("div", {}, message, fix, last), button, unaccepted, more);
    const proof = el("p.mbm-proof", { hidden: true });
    const make = () => el("li", {}, el("span"), el("small"));
    const update = (item, one) => {
      text(item.firstChild, one.message);
      setCommands(item.lastChild, one.fix);
    };
    let cause = null, warnings = [];

    function take(head) {
      cause = head.cause;
      warnings = head.warnings;
      unaccepted.hidden = !warnings.length;
      keyed(list, warnings, (one) => one.key, make, update);
      why.hidden = !cause;
      if (cause) tell();
      prove(head.proof);
    }

    function tell() {
      text(message, cause.message);
      // The problem's own words also tell where else warnings are accepted.
      setCommands(fix, warnings.length ? w("warnings.read") : cause.fix);
      text(last, cause.last ? w("cause.last", { step: whole(cause.last[0]), at: moment(cause.last[1]), ended: moment(cause.last[2]) }) : "");
      last.hidden = !cause.last;
      button.hidden = cause.rank === null || cause.rank === undefined;
      text(button, w("cause.log", { node: cause.node }));
      more.hidden = !cause.lines;
      text(more.firstChild, w("cause.lines", { file: cause.source, node: cause.node }));
      if (lines.textContent !== cause.lines) {
        text(lines, cause.lines);
        more.open = true;
        lines.scrollTop = lines.scrollHeight;
      }
    }

    function prove(counts) {
      proof.hidden = !counts;
      if (!counts) return;
      const whole = counts.proved === counts.nodes;
      attribute(proof, "data-tone", whole ? "good" : "bad");
      const words = whole ? w("proof", counts) : w("proof.open", { ...counts, open: counts.nodes - counts.proved });
      text(proof, `${whole ? "✓" : "!"} ${words}`);
    }

    return { root: el("div.mbm-trouble", {}, why, proof), take };
  }

  function Events() {
    const list = el("ol.mbm-events");
    const root = el("section.mb-card", { "aria-labelledby": "mbm-events" },
      el("header", {}, el("h3", { id: "mbm-events" }, w("events"))), list);
    const make = () => el("li", {}, el("time"), el("div", {}, el("span"), el("small")));
    const update = (item, event) => {
      attribute(item, "data-bad", event.bad);
      text(item.firstChild, moment(event.time, false));
      attribute(item.firstChild, "title", moment(event.time));
      const [words, why] = item.lastChild.children;
      text(words, event.text);
      text(why, event.why);
      why.hidden = !event.why;
    };
    return { root, take: (events) => keyed(list, events, (event) => event.seq, make, update) };
  }

  window.Megaboard = Object.assign(window.Megaboard || {}, { Run });
})();
