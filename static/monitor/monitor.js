// The monitor polls the server every few seconds and draws what has changed. The hash of the address selects the view:
// #runs is the list, #runs/<id> is one run. The server keeps no state of a tab: each poll request says what the tab
// has.
import { attribute, h, keyed, text } from "../lib/dom.js";
import { number, whole } from "../lib/format.js";
import { duration, moment } from "../lib/time.js";
import { addWords, w } from "../lib/words.js";
import { isLost } from "../web/connection.js";
import { go } from "../web/shell.js";
import { badge, setBadge } from "./badge.js";
import { DeleteDialog, Deletions } from "./delete.js";
import { RowActs } from "./resume.js";
import { Run } from "./run.js";
import { Storage } from "./storage.js";

// A poll request without an answer is given up after PATIENCE_MS. An answer is drawn after DRAWN_MS.
const PATIENCE_MS = 15000;
const DRAWN_MS = 50;
const NAMES = ["name", "state", "engine", "nodes", "started", "progress", "loss", "acts"];

// The script of Python's component and the tests use this object after `attach`.
export const monitor = { answered() {}, view: () => null };

export function attach(element, trigger, props, watch) {
  addWords(JSON.parse(props.words));
  const body = h("div");
  const notice = h("div.mbm-cause", { role: "alert", hidden: true }, h("strong"), h("p"));
  const root = h("div.mbm", {}, notice, body);
  element.querySelector("section").append(root);
  let view = null;
  let shown = null;
  let skew = 0;
  let polledAt = 0;
  let isPollWanted = false;

  let resumes = null;
  const forget = (section) => delete view.versions[section];
  const link = { now: () => Date.now() / 1000 + skew, poll, act, forget, openToResume, wantsResume };

  function route() {
    const [area, ...rest] = decodeURIComponent(location.hash.slice(1)).split("/");
    return area === "runs" ? { run: rest.join("/") } : null;
  }

  function show() {
    const target = route();
    if (!target) return;
    if (shown !== target.run) {
      view?.close();
      view = target.run ? Run(target.run, link) : List(link);
      view.versions = {};
      shown = target.run;
      body.replaceChildren(view.root);
      showProblem(null);
    }
    poll();
  }

  function pollRequest() {
    return { run: shown, seen: view.versions, ...view.query() };
  }

  // One poll at a time: a second poll would request what the first one is about to bring.
  function poll() {
    if (!view || !route() || document.hidden || isLost()) return;
    isPollWanted = polledAt > Date.now() - PATIENCE_MS;
    if (isPollWanted) return;
    polledAt = Date.now();
    trigger("poll", { question: pollRequest() });
  }

  function answered() {
    polledAt = 0;
    if (isPollWanted) setTimeout(poll, DRAWN_MS);
  }

  function tick() {
    if (polledAt <= Date.now() - PATIENCE_MS) poll();
  }

  function act(name, values = {}) {
    if (isLost()) return; // the notice on screen says so
    showProblem(null);
    trigger("act", { name, values, question: pollRequest() });
  }

  // Opens the run's view with its resume dialog. The button in the run's line of the list calls this.
  function openToResume(run) {
    resumes = run;
    go(`runs/${run}`);
  }

  function wantsResume(run) {
    const isWanted = resumes === run;
    resumes = null;
    return isWanted;
  }

  function draw() {
    const bundle = JSON.parse(props.value);
    if (!view || bundle.run !== shown) return;
    skew = bundle.now - Date.now() / 1000;
    Object.assign(view.versions, bundle.versions);
    if ("trouble" in bundle) showProblem(bundle.trouble);
    if (bundle.error || bundle.refused) showProblem(bundle.error ?? bundle.refused);
    view.take(bundle);
  }

  function showProblem(problem) {
    notice.hidden = !problem;
    if (problem) [problem.message, problem.fix].forEach((words, index) => text(notice.children[index], words));
  }

  watch("value", draw);
  document.addEventListener("megaboard:show", show);
  document.addEventListener("visibilitychange", poll);
  window.addEventListener("hashchange", show);
  setInterval(tick, props.interval_ms);
  setInterval(() => view?.everySecond(), 1000);
  Object.assign(monitor, { answered, view: () => view });
  show();
}

function List(link) {
  const head = h("tr", {}, ...NAMES.map((name) => h("th", { scope: "col" }, w(`column.${name}`))));
  const body = h("tbody", { onclick: (event) => event.target.closest("tr")?.querySelector("a").click() });
  const table = h("table.mbm-table.mbm-list", {}, h("caption.mbm-spoken", {}, w("runs")), h("thead", {}, head), body);
  const card = h("div.mb-card.mbm-scroll", { hidden: true }, table);
  const empty = emptyCard();
  const erase = DeleteDialog(link), deletions = Deletions(), storage = Storage(link, erase.open);
  const root = h("div", {}, h("div.mbm-title", {}, h("h2", { tabindex: "-1" }, w("runs"))), deletions.root, card, empty,
    storage.root, erase.root);

  function take(bundle) {
    if (bundle.deletions) deletions.take(bundle.deletions);
    storage.take(bundle.storage);
    erase.take(bundle.erase);
    if (!bundle.rows) return;
    card.hidden = !bundle.rows.length;
    empty.hidden = bundle.rows.length > 0;
    const queued = bundle.rows.filter((run) => run.queue_place !== null).length;
    keyed(body, bundle.rows, (run) => run.id, () => makeRow(link, erase.open), (row, run) => updateRow(row, run, queued));
  }

  return { root, take, query: () => ({ ...storage.query(), ...erase.query() }), everySecond() {}, close() {} };
}

function emptyCard() {
  const start = h("button.mb-button.mb-primary", { type: "button", "data-go": "hardware" }, w("empty.start"));
  return h("div.mb-card.mbm-empty", { hidden: true }, h("h3", {}, w("empty.title")), h("p.mb-quiet", {}, w("empty.words")), start);
}

function makeRow(link, erase) {
  const acts = RowActs(link.act, link.openToResume, erase);
  const bar = h("div.mbm-bar", { "aria-hidden": "true" }, h("i"));
  const row = h("tr", {},
    h("td", {}, h("a"), h("code.mb-quiet"), h("p.mbm-why")), h("td", {}, badge("state", "queued"), h("small.mb-quiet")), h("td"),
    h("td.mbm-num"), h("td"), h("td.mbm-progress-cell", {}, h("span"), bar, h("small.mb-quiet")), h("td.mbm-num"), h("td", {}, acts.root));
  row.acts = acts;
  return row;
}

function updateRow(row, run, queued) {
  const [name, state, engine, nodes, started, progress, loss] = row.cells;
  const target = `runs/${run.id}`;
  attribute(name.firstChild, "href", `#${encodeURI(target)}`);
  attribute(name.firstChild, "data-go", target);
  text(name.firstChild, run.name);
  text(name.children[1], run.id);
  setBadge(state.firstChild, "state", run.state);
  const stands = run.stands_since && w("stands", { at: moment(run.stands_since, false) });
  text(state.lastChild, stands || (run.queue_place === null ? "" : w("queue.place", { place: run.queue_place })));
  attribute(state.lastChild, "data-late", Boolean(stands));
  text(name.lastChild, run.why);
  name.lastChild.hidden = !run.why;
  row.acts.take(run, queued);
  text(engine, run.engine);
  text(nodes, whole(run.nodes));
  text(started, moment(run.created));
  const share = run.total ? Math.min(1, (run.step ?? 0) / run.total) : 0;
  const [steps, bar, left] = progress.children;
  text(steps, run.total ? w("progress.short", { step: whole(run.step ?? 0), total: whole(run.total),
    percent: Math.floor(100 * share) }) : "–");
  bar.firstChild.style.width = `${100 * share}%`;
  bar.dataset.state = run.state;
  text(left, run.eta_s ? w("progress.left", { time: duration(run.eta_s) }) : "");
  text(loss, number(run.loss));
}
