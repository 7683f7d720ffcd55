// The monitor polls the server every two seconds (TICK_S of app/monitor/page.py) and draws what has changed. The hash of
// the address selects the view: #runs is the list, #runs/<id> is one run, #runs/compare/<id>,<id> shows some side by
// side. The server keeps no state of a tab: each poll request says what the tab has.
import { setCommands } from "../lib/commands.js";
import { h } from "../lib/dom.js";
import { addWords } from "../lib/words.js";
import { isLost } from "../web/connection.js";
import { go } from "../web/shell.js";
import { List, MOST_COMPARED } from "./list.js";
import { Run } from "./run.js";
import { SideBySide } from "./side_by_side.js";

// A poll request without an answer is given up after PATIENCE_MS. An answer is drawn after DRAWN_MS.
const PATIENCE_MS = 15000;
const DRAWN_MS = 50;
const COMPARE = "compare/";

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
      view = viewOf(target.run);
      view.versions = {};
      shown = target.run;
      body.replaceChildren(view.root);
      showProblem(null);
    }
    poll();
  }

  function viewOf(run) {
    if (run.startsWith(COMPARE)) return SideBySide(run.slice(COMPARE.length).split(",").slice(0, MOST_COMPARED), link);
    return run ? Run(run, link) : List(link);
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
    const response = JSON.parse(props.value);
    if (!view || response.run !== shown) return;
    skew = response.now - Date.now() / 1000;
    Object.assign(view.versions, response.versions);
    if ("trouble" in response) showProblem(response.trouble);
    if (response.error || response.refused) showProblem(response.error ?? response.refused);
    view.take(response);
  }

  function showProblem(problem) {
    notice.hidden = !problem;
    if (problem) [problem.message, problem.fix].forEach((words, index) => setCommands(notice.children[index], words));
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
