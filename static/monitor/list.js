// The list of runs: search, order by column, tags, and the choice of runs to compare.
import { setCommands } from "../lib/commands.js";
import { attribute, fill, h, keyed, text } from "../lib/dom.js";
import { number, whole } from "../lib/format.js";
import { duration, moment } from "../lib/time.js";
import { w } from "../lib/words.js";
import { go } from "../web/shell.js";
import { badge, setBadge } from "./badge.js";
import { DeleteDialog, Deletions } from "./delete.js";
import { showTags } from "./labels.js";
import { RowActs } from "./resume.js";
import { SORTABLE, shownRuns, sortedRuns } from "./runs_order.js";
import { Storage } from "./storage.js";

const NAMES = ["name", "state", "engine", "started", "progress", "last", "best", "acts"];
export const MOST_COMPARED = 8;

// Search, order, metric and chosen runs outlive a visit to a run, but not a reload.
const kept = { search: "", isHiddenShown: false, column: "", isDescending: false, metric: "loss", chosen: new Set() };

// `link` is that of monitor.js.
export function List(link) {
  const headings = Object.fromEntries(NAMES.map((name) => [name, heading(name, () => sortBy(name))]));
  const head = h("tr", {}, h("th", { scope: "col" }, h("span.mbm-spoken", {}, w("column.choose"))), ...Object.values(headings));
  const body = h("tbody", { onclick: (event) => event.target.closest("label, input, button, a") || event.target.closest("tr")?.querySelector("a").click() });
  const table = h("table.mbm-table.mbm-list", {}, h("caption.mbm-spoken", {}, w("runs")), h("thead", {}, head), body);
  const none = h("p.mb-quiet.mbm-none", { hidden: true, role: "status" }, w("search.none"));
  const card = h("div.mb-card.mbm-scroll", { hidden: true }, table, none);
  const empty = emptyCard();
  const bar = Toolbar({ change: draw, poll: link.poll, compare, hide });
  const erase = DeleteDialog(link), deletions = Deletions(), storage = Storage(link, erase.open);
  const title = h("div.mbm-title", {}, h("h2", { tabindex: "-1" }, w("runs")), bar.root);
  const root = h("div", {}, title, deletions.root, card, empty, storage.root, erase.root);
  let rows = [];

  function take(response) {
    if (response.deletions) deletions.take(response.deletions);
    storage.take(response.storage);
    erase.take(response.erase);
    if (response.metric_names) bar.takeMetrics(response.metric_names);
    if (!response.rows) return;
    rows = response.rows;
    const known = new Set(rows.map((run) => run.id));
    kept.chosen.forEach((run) => known.has(run) || kept.chosen.delete(run));
    draw();
  }

  function draw() {
    card.hidden = bar.root.hidden = !rows.length;
    empty.hidden = rows.length > 0;
    const queued = rows.filter((run) => run.queue_place !== null).length;
    const shown = sortedRuns(shownRuns(rows, { ...kept, stateWords: (state) => w(`state.${state}`) }), kept);
    keyed(body, shown, (run) => run.id, () => makeRow(link, erase.open, choose, search), (row, run) => updateRow(row, run, queued));
    none.hidden = shown.length > 0;
    table.hidden = !shown.length;
    for (const [name, cell] of Object.entries(headings)) showOrder(cell, name);
    bar.take(rows);
  }

  function sortBy(column) {
    // Third press: newest first again.
    const isThird = kept.column === column && kept.isDescending;
    Object.assign(kept, isThird ? { column: "", isDescending: false } : { column, isDescending: kept.column === column });
    draw();
  }

  function choose(run, isChosen) {
    if (isChosen) kept.chosen.add(run);
    else kept.chosen.delete(run);
    draw();
  }

  function search(words) {
    bar.search(words);
    draw();
  }

  // In the order of the list, so that the same choice gives the same link.
  function compare() {
    const runs = rows.map((run) => run.id).filter((run) => kept.chosen.has(run));
    go(`runs/compare/${runs.join(",")}`);
  }

  function hide(hidden) {
    for (const run of rows.filter((row) => kept.chosen.has(row.id)))
      link.act("labels", { run: run.id, ...run.labels, hidden });
    kept.chosen.clear();
    draw();
  }

  return { root, take, query: () => ({ metric: kept.metric, ...storage.query(), ...erase.query() }), everySecond() {}, close() {} };
}

function Toolbar({ change, poll, compare, hide }) {
  const input = h("input", { type: "search", value: kept.search, placeholder: w("search"), "aria-label": w("search"),
    oninput: () => {
      kept.search = input.value;
      change();
    } });
  const hidden = h("input", { type: "checkbox", checked: kept.isHiddenShown, onchange: () => {
    kept.isHiddenShown = hidden.checked;
    change();
  } });
  const hiddenLabel = h("label.mbm-check", { hidden: true }, hidden, h("span"));
  const metric = h("select", { "aria-label": w("list.metric"), onchange: () => {
    kept.metric = metric.value;
    poll();
  } });
  const compareButton = h("button.mb-button", { type: "button", hidden: true, onclick: compare });
  const hideButton = h("button.mb-button", { type: "button", hidden: true, onclick: () => hide(!isAllHidden) });
  const root = h("div.mbm-toolbar", {}, input, metric, hiddenLabel, hideButton, compareButton);
  let isAllHidden = false;

  function take(rows) {
    const chosen = rows.filter((run) => kept.chosen.has(run.id));
    const hiddenCount = rows.filter((run) => run.labels.hidden).length;
    isAllHidden = chosen.length > 0 && chosen.every((run) => run.labels.hidden);
    hiddenLabel.hidden = !hiddenCount;
    text(hiddenLabel.lastChild, w("list.hidden", { count: hiddenCount }));
    hideButton.hidden = !chosen.length;
    text(hideButton, w(isAllHidden ? "list.unhide" : "list.hide"));
    text(compareButton, w("list.compare", { count: chosen.length }));
    compareButton.disabled = chosen.length < 2 || chosen.length > MOST_COMPARED;
    attribute(compareButton, "title", w("list.compare.title", { most: MOST_COMPARED }));
    compareButton.hidden = rows.length < 2;
  }

  return {
    root,
    take,
    search(words) {
      input.value = kept.search = words;
    },
    // `names` has [name, words] of the loss and of what any run has logged.
    takeMetrics(names) {
      if (!names.some(([name]) => name === kept.metric)) kept.metric = "loss";
      fill(metric, names.map(([name, words]) => h("option", { value: name, selected: name === kept.metric }, words)));
      metric.hidden = names.length < 2;
    },
  };
}

function heading(name, sort) {
  if (!SORTABLE.includes(name)) return h("th", { scope: "col" }, w(`column.${name}`));
  return h("th", { scope: "col" }, h("button.mbm-sort", { type: "button", onclick: sort }, h("span", {}, w(`column.${name}`)), h("i", { "aria-hidden": "true" })));
}

function showOrder(cell, name) {
  const isSorted = kept.column === name;
  attribute(cell, "aria-sort", isSorted ? (kept.isDescending ? "descending" : "ascending") : null);
  const sign = cell.querySelector("i");
  if (sign) text(sign, isSorted ? (kept.isDescending ? "↓" : "↑") : "");
}

function emptyCard() {
  const start = h("button.mb-button.mb-primary", { type: "button", "data-go": "hardware" }, w("empty.start"));
  return h("div.mb-card.mbm-empty", { hidden: true }, h("h3", {}, w("empty.title")), h("p.mb-quiet", {}, w("empty.words")), start);
}

function makeRow(link, erase, choose, search) {
  const acts = RowActs(link.act, link.openToResume, erase);
  const box = h("input", { type: "checkbox", onchange: () => choose(row.dataset.key, box.checked) });
  const bar = h("div.mbm-bar", { "aria-hidden": "true" }, h("i"));
  const row = h("tr", {}, h("td", {}, h("label.mbm-choose", {}, box)),
    h("td", {}, h("a"), h("code.mb-quiet"), h("div.mbm-tags"), h("p.mbm-note.mb-quiet"), h("p.mbm-why")),
    h("td", {}, badge("state", "queued"), h("small.mb-quiet")), h("td", {}, h("span"), h("small.mb-quiet")),
    h("td"), h("td.mbm-progress-cell", {}, h("span"), bar, h("small.mb-quiet")), h("td.mbm-num"), h("td.mbm-num"), h("td", {}, acts.root));
  row.parts = { acts, search };
  return row;
}

function updateRow(row, run, queued) {
  const [choice, name, state, engine, started, progress, last, best] = row.cells;
  const target = `runs/${run.id}`;
  const box = choice.querySelector("input");
  box.checked = kept.chosen.has(run.id);
  attribute(box, "aria-label", w("list.choose", { name: run.name, id: run.id }));
  const [link, id, tags, note, why] = name.children;
  attribute(link, "href", `#${encodeURI(target)}`);
  attribute(link, "data-go", target);
  text(link, run.name);
  text(id, run.id);
  showTags(tags, run.labels.tags, row.parts.search);
  text(note, run.labels.note.split("\n")[0]);
  note.hidden = !run.labels.note;
  setCommands(why, run.why);
  why.hidden = !run.why;
  setBadge(state.firstChild, "state", run.state);
  const stands = run.stands_since && w("stands", { at: moment(run.stands_since, false) });
  text(state.lastChild, stands || (run.queue_place === null ? "" : w("queue.place", { place: run.queue_place })));
  attribute(state.lastChild, "data-late", Boolean(stands));
  row.parts.acts.take(run, queued);
  text(engine.firstChild, run.engine);
  text(engine.lastChild, w("list.nodes", { count: whole(run.nodes) }));
  text(started, moment(run.created));
  showProgress(progress, run);
  text(last, number(run.metric?.last ?? null));
  text(best, number(run.metric?.best ?? null));
}

function showProgress(cell, run) {
  const share = run.total ? Math.min(1, (run.step ?? 0) / run.total) : 0;
  const [steps, bar, left] = cell.children;
  text(steps, run.total ? w("progress.short", { step: whole(run.step ?? 0), total: whole(run.total),
    percent: Math.floor(100 * share) }) : "–");
  bar.firstChild.style.width = `${100 * share}%`;
  bar.dataset.state = run.state;
  text(left, run.eta_s ? w("progress.left", { time: duration(run.eta_s) }) : "");
}
