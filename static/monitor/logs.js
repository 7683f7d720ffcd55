// The logs of a run: the newest lines of one file of one node, followed live, with a filter. Everything is inserted as
// text.
import { attribute, h, keyed, text } from "../lib/dom.js";
import { w } from "../lib/words.js";

const MOST_LINES = 5000;

export function Logs(poll) {
  const attempt = h("select", { "aria-label": w("log.attempt"), hidden: true, onchange: () =>
    choose(state.node, state.file, attempt.selectedIndex ? Number(attempt.value) : null) });
  const node = h("select", { "aria-label": w("log.node"), hidden: true, onchange: () => choose(Number(node.value), null, state.attempt) });
  const file = h("select", { "aria-label": w("log.file"), onchange: () => choose(state.node, file.value, state.attempt) });
  const follow = h("input", { type: "checkbox", checked: true, id: "mbm-follow", onchange: () => scrollDown() });
  const filter = h("input.mbm-filter", { type: "search", placeholder: w("log.filter"), "aria-label": w("log.filter"),
    oninput: () => refilter() });
  const count = h("span.mb-quiet.mbm-found", { role: "status" });
  const earlier = h("button.mbm-chip", { type: "button", onclick: () => loadEarlier() }, w("log.earlier"));
  const place = h("p.mbm-place.mb-quiet", { hidden: true, role: "status" }, h("span"), h("button.mbm-chip", { type: "button", onclick: () => toNewest() }, w("log.newest")));
  const box = h("pre.mbm-log", { role: "group", tabindex: "0", "aria-label": w("logs"), onscroll: () => noteScroll() });
  const root = h("section.mb-card.mbm-logs", { "aria-labelledby": "mbm-logs" },
    h("header", {}, h("h3", { id: "mbm-logs" }, w("logs")),
      h("div.mbm-tools", {}, attempt, node, file, filter, count, h("label", { for: "mbm-follow" }, follow, w("log.follow")))),
    place, h("div.mbm-earlier", {}, earlier), box);
  // `attempt` and `file` are the choices; null means the newest attempt and the node's first file. `shown` and `named`
  // are the attempt and the file of the lines on screen. An attempt may not have the chosen file, or may get it later.
  const state = { attempt: null, shown: null, node: 0, file: null, named: null, start: null, end: null, open: false, before: null, around: null };
  let chosen = false;

  function choose(rank, name, number = null) {
    chosen = true;
    turnTo(rank, name, number);
  }

  function turnTo(rank, name, number = null) {
    Object.assign(state, { attempt: number, node: rank, file: name });
    forget();
    poll();
  }

  function forget() {
    Object.assign(state, { start: null, end: null, open: false, before: null, around: null });
    place.hidden = true;
  }

  // Shows the newest lines again.
  function toNewest() {
    forget();
    box.replaceChildren();
    poll();
  }

  function loadEarlier() {
    if (!state.start) return;
    state.before = state.start;
    poll();
  }

  function take(log) {
    if (!log || log.node !== state.node || log.asked !== state.file) return;
    if (state.attempt !== null && log.attempt !== state.attempt) return;
    if (log.files) offerFiles(log.files);
    // A new attempt has begun, or the chosen file exists now. This answer continues the previous file.
    const isOther = log.attempt !== state.shown || log.file !== state.named;
    if (isOther && (log.from !== undefined || log.before !== undefined)) {
      forget();
      box.replaceChildren();
      poll();
      return;
    }
    // If the user has chosen no file, the next attempt does not wait for the file that explained a failure.
    if (state.shown !== null && log.attempt !== state.shown && !chosen) state.file = null;
    state.shown = log.attempt;
    state.named = log.file;
    if (log.file) file.value = log.file;
    if (log.around !== undefined) showAround(log);
    else if (log.before !== undefined) prepend(log);
    else if (log.from === undefined) replace(log);
    else if (log.from === state.end) append(log);
    earlier.hidden = !state.start;
    note();
  }

  function offerFiles(names) {
    offer(file, names, (name) => name, (name) => name);
    file.hidden = !names.length;
  }

  function takeAttempts(newest) {
    const numbers = Array.from({ length: newest }, (_, before) => newest - before);
    offer(attempt, numbers, (number) => number, (number) =>
      w(number === newest ? "log.attempt_newest" : "log.attempt_number", { attempt: number }));
    attempt.hidden = newest < 2;
    attempt.value = String(state.attempt ?? newest);
  }

  function takeNodes(nodes) {
    node.hidden = !nodes.length;
    offer(node, nodes, ({ rank }) => rank, ({ rank, address }) => w("log.node_name", { rank, address }));
    node.value = String(state.node);
  }

  function replace(log) {
    box.replaceChildren(...log.lines.map(line));
    Object.assign(state, { start: log.start, end: log.end, open: log.open });
    scrollDown();
  }

  // Shows the lines around an offset and marks the line that begins there.
  function showAround(log) {
    box.replaceChildren(...log.lines.map(line));
    Object.assign(state, { start: log.start, end: log.end, open: false });
    follow.checked = false;
    const marked = box.children[log.line] ?? box.lastChild;
    if (!marked) return;
    marked.className = "mbm-marked";
    box.scrollTop = marked.offsetTop - box.offsetTop - box.clientHeight / 3;
  }

  function append(log) {
    if (state.open && log.lines.length) box.lastChild?.remove();
    box.append(...log.lines.map(line));
    Object.assign(state, { end: log.end, open: log.open });
    while (box.childElementCount > MOST_LINES) {
      box.firstChild.remove();
      state.start = null;
    }
    scrollDown();
  }

  function prepend(log) {
    if (log.before !== state.start) return;
    const fromEnd = box.scrollHeight - box.scrollTop;
    box.prepend(...log.lines.map(line));
    Object.assign(state, { start: log.start, before: null });
    box.scrollTop = box.scrollHeight - fromEnd;
  }

  function line(words) {
    const node = h("span", {}, `${words}\n`);
    node.hidden = !fits(words);
    return node;
  }

  function fits(words) {
    const needle = filter.value.trim().toLowerCase();
    return !needle || words.toLowerCase().includes(needle);
  }

  function refilter() {
    for (const span of box.children) span.hidden = !fits(span.textContent);
    scrollDown();
    note();
  }

  function note() {
    const all = box.childElementCount;
    const shown = filter.value.trim() ? [...box.children].filter((span) => !span.hidden).length : all;
    text(count, shown === all ? w(all === 1 ? "log.line" : "log.lines", { count: all }) : w("log.found", { shown, count: all }));
    const nothing = all ? w("log.unmatched") : state.named ? w("log.empty")
      : state.shown > 1 ? w("log.none_of", { attempt: state.shown }) : w("log.none");
    attribute(box, "data-empty", shown ? null : nothing);
  }

  function scrollDown() {
    if (follow.checked) box.scrollTop = box.scrollHeight;
  }

  // The log stops following when the user scrolls up, and follows again at the end.
  function noteScroll() {
    if (box.clientHeight) follow.checked = box.scrollTop + box.clientHeight >= box.scrollHeight - 24;
  }

  return {
    root,
    take,
    takeAttempts,
    takeNodes,
    // Turns to the node that failed, unless the user has chosen a node.
    prefer({ rank, file }) {
      const isShown = rank === state.node && (!file || file === state.file || file === state.named);
      if (!chosen && Number.isInteger(rank) && !isShown) turnTo(rank, file || null);
    },
    query: () => ({ attempt: state.attempt, node: state.node, file: state.file, end: state.end, before: state.before,
      around: state.around ?? undefined }),
    // Shows the line of a step. `offset` is null if the node did not report it.
    showPlace({ step, attempt: number, node: rank, file: name, offset }) {
      if (offset !== null) {
        choose(rank, name, number);
        state.around = offset;
        node.value = String(rank);
      }
      text(place.firstChild, w(offset === null ? "log.unknown_step" : "log.at_step", { step }));
      place.hidden = false;
      place.lastChild.hidden = offset === null;
      root.scrollIntoView({ block: "nearest" });
    },
    show(rank, name) {
      choose(rank, name);
      node.value = String(rank);
      root.scrollIntoView({ block: "start" });
      box.focus({ preventScroll: true });
    },
  };
}

function offer(select, rows, value, label) {
  keyed(select, rows, value, () => h("option"), (option, row) => {
    attribute(option, "value", value(row));
    text(option, label(row));
  });
}
