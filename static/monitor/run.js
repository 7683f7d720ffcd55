// One run: its head with progress and the stop buttons, its charts, nodes, events and logs.
import { setCommands } from "../lib/commands.js";
import { attribute, h, keyed, text } from "../lib/dom.js";
import { number, whole } from "../lib/format.js";
import { duration, moment } from "../lib/time.js";
import { w } from "../lib/words.js";
import { isLost } from "../web/connection.js";
import { go } from "../web/shell.js";
import { badge, setBadge } from "./badge.js";
import { Charts } from "./charts.js";
import { Chat } from "./chat.js";
import { Checkpoints, openInWizard } from "./checkpoints.js";
import { Compare } from "./compare.js";
import { DeleteDialog } from "./delete.js";
import { Evaluation } from "./evaluation.js";
import { Export } from "./export.js";
import { Hang, Notice } from "./hang.js";
import { Labels } from "./labels.js";
import { Logs } from "./logs.js";
import { Nodes } from "./nodes.js";
import { Attempts } from "./resume.js";
import { Rules } from "./rules.js";
import { Utilization } from "./utilization.js";

const FACTS = ["elapsed", "eta", "tokens_per_s", "step_s", "loss"];
const BESIDE = ["elapsed", "eta", "tokens_per_s"];

// `link` is { now(), poll(), act(name, values), wantsResume(id) } of monitor.js.
export function Run(id, link) {
  const parts = {
    head: Head(id, link),
    trouble: Trouble(id, (rank, file) => parts.logs.show(rank, file), (keys) => link.act("accept", { keys }), () => link.act("resume"),
      (fix) => parts.head.continueWith(fix)),
    hang: Hang(link.now, (rank, file) => parts.logs.show(rank, file)),
    straggler: Notice(),
    unseen: Notice(),
    compare: Compare(id, () => link.act("calibrate")),
    export: Export(() => link.act("export")),
    chat: Chat(link.act),
    evaluation: Evaluation(link.act),
    charts: Charts({ poll: link.poll, showLog(step) {
      wantedStep = step;
      link.poll();
    } }),
    rules: Rules(link.act),
    utilization: Utilization(id, link.poll),
    nodes: Nodes(link.now),
    events: Events(),
    logs: Logs(link.poll),
  };
  const below = h("div.mbm-below", {}, parts.logs.root, parts.events.root);
  let head = {}, wantedStep = null;
  const root = h("div.mbm-run", { "data-run": id }, parts.head.root, parts.unseen.root, parts.hang.root,
    parts.straggler.root, parts.trouble.root,
    parts.charts.root, parts.rules.root, parts.compare.root, parts.utilization.root, parts.nodes.root, parts.export.root, parts.chat.root, parts.evaluation.root, below);

  function take(response) {
    // A run that is unknown or cannot be read has nothing to show and no buttons.
    parts.head.erase.take(response.erase);
    if (response.error || response.head) root.classList.toggle("mbm-nothing", !response.head && !head.state);
    if (response.head || response.progress || "compare" in response) takeHead(response);
    if (response.head) parts.trouble.take(response.head);
    if (response.head) parts.export.take(response.head.export);
    if (response.head) parts.chat.take(response.head.chat, response.head.resume);
    if (response.head) parts.evaluation.take(response.head.evaluation);
    if (response.head) parts.logs.takeAttempts(response.head.attempt);
    if (response.head?.cause) parts.logs.prefer(response.head.cause);
    if ("standstill" in response) parts.hang.take(response.standstill);
    if ("slowdown" in response) parts.straggler.take(response.slowdown);
    if ("unseen" in response) parts.unseen.take(response.unseen);
    if (response.nodes) parts.nodes.take(response.nodes);
    if (response.nodes) parts.logs.takeNodes(response.nodes);
    if (response.nodes) parts.utilization.takeNodes(response.nodes);
    parts.utilization.take(response.usage);
    if (response.events) parts.events.take(response.events);
    parts.charts.take(id, response);
    if (response.metrics) parts.rules.takeNames(response.metrics);
    if (response.rules) parts.rules.take(response.rules);
    parts.rules.root.hidden = !head.attempt;
    parts.charts.root.hidden = (head.is_final || !head.attempt) && parts.charts.isEmpty();
    if (response.place) takePlace(response.place);
    parts.logs.take(response.log);
    parts.logs.root.hidden = !head.attempt;
  }

  function takePlace(place) {
    if (place.step === wantedStep) wantedStep = null;
    parts.logs.showPlace(place);
  }

  // The server does not send the values that seldom change with every step.
  function takeHead(response) {
    const { compare = head.compare } = response;
    head = { ...head, ...response.head, ...response.progress, compare };
    parts.head.take(head);
    parts.compare.take(compare);
    // After a finished run, what can be done with the model stands below its curves. Otherwise its nodes matter more.
    const next = head.state === "finished" ? parts.rules.root : below;
    if (parts.evaluation.root.nextSibling !== next) next.before(parts.export.root, parts.chat.root, parts.evaluation.root);
  }

  return {
    root,
    take,
    charts: parts.charts,
    utilization: parts.utilization,
    query: () => ({ ...parts.charts.query(id), step: wantedStep ?? undefined, log: parts.logs.query(),
      usage: parts.utilization.query(), ...parts.head.erase.query() }),
    everySecond() {
      parts.head.age();
      parts.nodes.age();
      parts.hang.age();
    },
    close() {
      parts.charts.close();
      parts.chat.close();
      parts.utilization.close();
    },
  };
}

function Head(id, link) {
  const title = h("h2", { tabindex: "-1" });
  const state = badge("state", "queued");
  const save = h("button.mb-button", { type: "button", onclick: () => link.act("save") }, w("stop.save"));
  const stop = h("button.mb-button.mbm-danger", { type: "button", onclick: () => (shown.is_waiting || shown.is_watched ? link.act("stop") : confirmStop.open(shown)) }, w("stop.now"));
  const about = h("p.mbm-about.mb-quiet");
  const scheduler = h("p.mbm-scheduler.mb-quiet", { hidden: true });
  const bar = h("div.mbm-bar", { role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100",
    "aria-label": w("progress") }, h("i"));
  const progressWords = h("div.mbm-progress-words", {}, h("span"), h("span"));
  const facts = h("dl.mbm-facts", {}, ...FACTS.map((name) => h("div", {}, h("dt", {}, w(`fact.${name}`)), h("dd"),
    BESIDE.includes(name) ? h("dd.mbm-beside.mb-quiet", { "data-beside": name }) : null)));
  const spoken = h("p.mbm-spoken", { role: "status" });
  const confirmStop = ConfirmStop(() => link.act("stop"));
  const requestSearch = () => link.act("checkpoints");
  const resume = Checkpoints("resume", { requestSearch, needsNodes: true, kind: ".mb-primary", go(step, dialog) {
    dialog.close();
    link.act("resume", { step });
  } });
  const again = h("button.mb-button.mb-primary", { type: "button", title: w("queue.again.label"),
    onclick: () => link.act("resume") }, w("queue.again"));
  const more = Checkpoints("continue", { requestSearch, go: (step, dialog, fix) => openInWizard(id, step, dialog, fix) });
  const erase = DeleteDialog(link, () => go("runs"));
  const remove = h("button.mb-button", { type: "button", onclick: () => erase.open(id) }, w("delete"));
  const labels = Labels((values) => link.act("labels", values));
  const attempts = Attempts((restarts) => link.act("restarts", { restarts }));
  const root = h("header.mbm-head", {},
    h("a.mbm-back", { href: "#runs", "data-go": "runs" }, `← ${w("runs")}`),
    h("div.mbm-title", {}, title, state, h("div.mbm-buttons", {}, remove, more.button, resume.button, again, save, stop)), about, scheduler, labels.root, attempts.root,
    h("div.mb-card.mbm-progress", {}, progressWords, bar, facts), spoken, confirmStop.root, resume.root, more.root, erase.root);
  let shown = null;
  let wantsResume = link.wantsResume(id);

  function take(head) {
    const changed = shown && shown.state !== head.state;
    shown = head;
    text(title, head.name);
    setBadge(state, "state", head.state);
    if (changed) text(spoken, w("state.spoken", { name: head.name, state: w(`state.${head.state}`) }));
    text(about, w(head.attempt ? "about" : "about.unstarted", { id, engine: head.engine, attempt: head.attempt, nodes: head.nodes, started: moment(head.started ?? head.created) }));
    text(scheduler, head.scheduler ?? "");
    scheduler.hidden = !head.scheduler;
    save.hidden = head.is_final || head.is_waiting || head.is_watched || head.is_derived;
    stop.hidden = head.is_final;
    remove.hidden = !head.can_delete;
    text(stop, w(head.is_waiting ? "queue.cancel" : head.is_watched ? "stop.watching" : "stop.now"));
    resume.take(head.can_resume && head.attempt > 0, head.resume);
    again.hidden = !head.can_resume || head.attempt > 0 || head.warnings.length > 0;
    more.take(head.can_continue, head.resume);
    attempts.take(head);
    labels.take(head.labels);
    if (wantsResume && head.can_resume) resume.open();
    wantsResume = false;
    save.disabled = !head.can_save;
    stop.disabled = !head.can_stop;
    text(save, w(head.is_saving ? "stop.saving" : "stop.save"));
    progress(head);
    age();
    if (!head.can_stop) confirmStop.close();
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
    text(progressWords.firstChild, words);
    text(progressWords.lastChild, waits || head.total ? w("percent", { percent }) : "");
    attribute(bar, "aria-valuetext", words);
  }

  function age() {
    if (!shown) return;
    const speed = shown.tokens_per_s === null ? "–" : whole(shown.tokens_per_s);
    const step = shown.step_s === null ? "–" : w("seconds", { seconds: number(shown.step_s, 3) });
    const values = [shown.elapsed === null ? "–" : duration(elapsed(...shown.elapsed)),
      shown.eta_s === null ? "–" : duration(shown.eta_s), speed, step, number(shown.loss)];
    const { predicted_tokens_per_s_low: low = null, predicted_tokens_per_s_high: high = null } = shown.compare ?? {};
    const two = (rate) => whole(Number(rate.toPrecision(2)));
    const beside = low === null ? "" : w("fact.predicted", { low: two(low), high: two(high) });
    values.forEach((value, place) => text(facts.children[place].children[1], value));
    text(facts.children[0].lastChild, shown.attempt > 1 ? w("fact.attempts", { count: shown.attempt }) : "");
    text(facts.children[1].lastChild, until());
    text(facts.children[2].lastChild, beside);
  }

  function elapsed(done, since) {
    return done + (since === null ? 0 : Math.max(0, link.now() - since));
  }

  // Returns the time of day at which the run ends, with the date if it is another day.
  function until() {
    if (shown.eta_s === null) return "";
    const end = link.now() + shown.eta_s, isToday = moment(end).slice(0, 10) === moment(link.now()).slice(0, 10);
    return w("fact.until", { at: moment(end, !isToday).slice(0, -3) });
  }

  return { root, take, age, erase, continueWith: (fix) => more.open(fix) };
}

// Asks for confirmation before a run is ended without a checkpoint. The safe answer has the focus.
function ConfirmStop(yes) {
  const words = h("p");
  const no = h("button.mb-button", { type: "button", autofocus: true, onclick: () => root.close() }, w("stop.keep"));
  const sure = h("button.mb-button.mbm-danger", { type: "button", onclick: () => {
    root.close();
    yes();
  } }, w("stop.sure"));
  const heading = h("h3", { id: "mbm-ask" }, w("stop.title"));
  const root = h("dialog.mbm-ask", { "aria-labelledby": "mbm-ask" }, heading, words, h("div.mbm-buttons", {}, no, sure));
  return {
    root,
    close: () => root.open && root.close(),
    open(head) {
      if (isLost()) return;
      text(words, w("stop.words", { name: head.name, nodes: head.nodes }));
      root.showModal();
    },
  };
}

// Why the run failed, the fix, the last lines that show the cause, and the proof that no process is left. Also the
// warnings that kept the run from starting: the user accepts them, or fixes their causes and checks again.
function Trouble(id, showLog, accept, again, continueWith) {
  const message = h("strong");
  const fix = h("p");
  const last = h("p.mb-quiet");
  const evidence = h("p.mbm-evidence", {}, h("span.mb-quiet"), " ", h("code"));
  const versions = h("p.mb-quiet");
  const sign = h("p.mb-quiet");
  const others = h("div.mbm-others", {}, h("p.mb-quiet", {}, w("cause.others")), h("ul"));
  const fixes = h("div.mbm-fixes", {}, h("p.mb-quiet", {}, w("fix.title")), h("div.mbm-buttons"));
  const lines = h("pre.mbm-lines", { tabindex: "0" });
  const more = h("details", {}, h("summary"), lines);
  const button = h("button.mbm-chip", { type: "button", onclick: () => showLog(cause.rank, cause.file) });
  const report = h("a.mbm-chip", { href: `/api/report/${encodeURIComponent(id)}`, download: "" }, w("cause.report"));
  const list = h("ul.mbm-warnings");
  const yes = h("button.mb-button.mb-primary", { type: "button", onclick: () => accept(warnings.flatMap((warning) => warning.keys)) },
    w("warnings.accept"));
  const checkAgain = h("button.mb-button", { type: "button", onclick: again }, w("warnings.again"));
  const unaccepted = h("div.mbm-unaccepted", { hidden: true }, list, h("div.mbm-buttons", {}, yes, checkAgain));
  const why = h("div.mbm-cause", { role: "alert", hidden: true }, h("div", {}, message, evidence, sign, fix, versions, others, fixes, last),
    h("div.mbm-buttons", {}, button, report), unaccepted, more);
  const proof = h("p.mbm-proof", { hidden: true });
  const make = () => h("li", {}, h("span"), h("small"));
  const update = (item, warning) => {
    setCommands(item.firstChild, warning.message);
    setCommands(item.lastChild, warning.fix);
  };
  let cause = null, warnings = [];

  function take(head) {
    cause = head.cause;
    warnings = head.warnings;
    unaccepted.hidden = !warnings.length;
    keyed(list, warnings, (warning) => warning.keys.join(), make, update);
    why.hidden = !cause;
    if (cause) showCause();
    const offerButton = () => h("button.mb-button", { type: "button" }, h("span"), h("small.mb-quiet"));
    keyed(fixes.lastChild, head.fixes ?? [], (offer) => offer.words, offerButton, (item, offer) => {
      text(item.firstChild, offer.words);
      text(item.lastChild, offer.memory);
      item.onclick = () => continueWith(head.fixes.indexOf(offer));
    });
    fixes.hidden = !head.fixes?.length;
    prove(head.proof);
  }

  function showCause() {
    setCommands(message, cause.is_certain ? cause.message : `${w("cause.likely")} ${cause.message}`);
    text(evidence.firstChild, w("cause.evidence", { file: cause.source }));
    text(evidence.lastChild, cause.evidence);
    evidence.hidden = !cause.evidence || cause.message.includes(cause.evidence);
    text(versions, `${w("cause.versions")} ${cause.versions}`);
    versions.hidden = !cause.versions;
    setCommands(sign, cause.sign);
    sign.hidden = !cause.sign;
    const make = () => h("li", {}, h("span"), h("small.mb-quiet"), h("small"));
    keyed(others.lastChild, cause.others, (other) => other.message, make, (item, other) => {
      setCommands(item.firstChild, other.message);
      setCommands(item.children[1], other.sign);
      setCommands(item.lastChild, other.fix);
    });
    others.hidden = !cause.others.length;
    // The fix of the problem also names the other pages where the user can accept warnings.
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
      // Of chained tracebacks the first says what went wrong first.
      lines.scrollTop = cause.lines.split("Traceback (most recent call last)").length > 2 ? 0 : lines.scrollHeight;
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

  return { root: h("div.mbm-trouble", {}, why, proof), take };
}

function Events() {
  const list = h("ol.mbm-events", { tabindex: "0", "aria-labelledby": "mbm-events" });
  const root = h("section.mb-card", { "aria-labelledby": "mbm-events" },
    h("header", {}, h("h3", { id: "mbm-events" }, w("events"))), list);
  const make = () => h("li", {}, h("time"), h("div", {}, h("span"), h("small")));
  const update = (item, event) => {
    attribute(item, "data-bad", event.bad);
    text(item.firstChild, moment(event.time, false));
    attribute(item.firstChild, "title", moment(event.time));
    const [words, why] = item.lastChild.children;
    setCommands(words, event.text);
    setCommands(why, event.why);
    why.hidden = !event.why;
  };
  return { root, take: (events) => keyed(list, events, (event) => event.seq, make, update) };
}
