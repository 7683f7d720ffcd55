// The disk space of the runs' data, the rules that delete it, and the deleted runs.
import { setCommands } from "../lib/commands.js";
import { attribute, h, keyed, text } from "../lib/dom.js";
import { whole } from "../lib/format.js";
import { moment } from "../lib/time.js";
import { w } from "../lib/words.js";

const FILES = ["database", "reusable", "spare", "archives", "flight_records", "disk_free", "growth"];
const SIZES = ["total", "curves", "other_ranks", "logs"];
const DAY_S = 86400;

// `link` is { act, poll, now } of monitor.js. `erase(run)` opens the dialog before a deletion.
export function Storage(link, erase) {
  const short = h("span.mb-quiet");
  const files = h("dl.mbm-storage-files", {}, ...FILES.map((name) => h("div", {}, h("dt", {}, w(`storage.${name}`)), h("dd"))));
  const compact = h("button.mb-button", { type: "button", onclick: () => link.act("compact") }, w("storage.compact"));
  const compactWords = h("p.mb-quiet");
  const compaction = h("div.mbm-storage-compact", { hidden: true }, compactWords, compact);
  const head = ["run", ...SIZES, ""].map((name) => h("th", { scope: "col" }, !name ? "" : ["total", "run"].includes(name) ? w(`storage.${name}`) : w(`storage.kind.${name}`)));
  const body = h("tbody");
  const table = h("table.mbm-table.mbm-storage-runs", {}, h("caption.mbm-spoken", {}, w("storage.runs")), h("thead", {}, h("tr", {}, ...head)), body);
  const rules = Rules(link);
  const deleted = h("ul.mbm-delete-list");
  const gone = h("div", { hidden: true }, h("h4", {}, w("storage.deleted")), deleted);
  const inner = h("div.mbm-storage-inner", {}, files, compaction, rules.root,
    h("h4", {}, w("storage.runs")), h("p.mb-quiet", {}, `${w("storage.measured")} ${w("storage.estimated")}`),
    h("div.mbm-scroll.mbm-storage-scroll", { tabindex: "0" }, table), gone);
  const root = h("details.mb-card.mbm-storage", { ontoggle: () => root.open && link.poll() }, h("summary", {}, h("strong", {}, w("storage")), " ", short), inner);

  function take(storage) {
    if (!storage) return;
    rules.take(storage);
    takeCompaction(storage);
    gone.hidden = !storage.deleted.length;
    keyed(deleted, storage.deleted, (run) => run.run, () => h("li", {}, h("span"), h("small")), (item, run) => {
      text(item.firstChild, w("storage.deleted.line", { at: moment(run.deleted), run: run.run, by: w(`storage.by.${run.by}`) }));
      text(item.lastChild, run.archive ? w("storage.archive_at", { path: run.archive }) : "");
    });
    text(short, storage.look ? "" : w("delete.measuring"));
    if (storage.look) takeLook(storage.look);
  }

  function takeLook(look) {
    FILES.forEach((name, place) => text(files.children[place].lastChild, name === "growth" ? growth(look) : look[name]));
    keyed(body, look.runs, (run) => run.id, () => makeRow(erase), updateRow);
  }

  function growth(look) {
    return look.growth === null ? w("storage.growth.unknown") : w("storage.growth.of", { size: look.growth, hours: look.growth_hours });
  }

  function takeCompaction(storage) {
    const problem = storage.compacting?.problem, busy = storage.compacting && !problem;
    compaction.hidden = !storage.look || (storage.look.gives_back && !storage.compacting);
    compact.disabled = Boolean(busy);
    attribute(compactWords, "data-tone", problem ? "bad" : null);
    setCommands(compactWords, problem ? `${problem.message} ${problem.fix}` : w(busy ? "storage.compacting" : "storage.compact.words"));
  }

  return { root, take, query: () => (root.open ? { storage: true } : {}) };
}

function makeRow(erase) {
  const button = h("button.mbm-chip", { type: "button", onclick: () => erase(row.dataset.key) }, w("delete"));
  const row = h("tr", {}, h("td", {}, h("a"), h("code.mb-quiet")), ...SIZES.map(() => h("td.mbm-num")), h("td", {}, button));
  return row;
}

function updateRow(row, run) {
  const [name, ...cells] = row.cells;
  const target = `runs/${run.id}`;
  attribute(name.firstChild, "href", `#${encodeURI(target)}`);
  attribute(name.firstChild, "data-go", target);
  text(name.firstChild, run.name);
  text(name.lastChild, run.id);
  SIZES.forEach((size, place) => text(cells[place], run[size]));
  if (run.is_thinned) text(cells[SIZES.indexOf("other_ranks")], `${run.other_ranks} · ${w("storage.thinned")}`);
  const button = cells.at(-1).firstChild;
  button.disabled = !run.can_delete;
  attribute(button, "title", run.why || null);
}

// Days until rows and runs are deleted; an empty field means never. A field that the user is editing stays as it is.
function Rules(link) {
  const days = () => h("input", { type: "number", min: 0, max: 36500, step: 1, placeholder: w("storage.never"), oninput: edited });
  const raw = days(), whole_runs = days(), archive = h("input", { type: "checkbox", onchange: edited });
  const concerns = h("p.mbm-storage-concerns", { role: "status" }), saved = h("span.mbm-storage-saved", { role: "status" });
  const save = h("button.mb-button", { type: "button", disabled: true, onclick: () => {
    awaited = formRules();
    link.act("retention", awaited);
  } }, w("storage.save"));
  const root = h("section.mbm-storage-rules", { "aria-labelledby": "mbm-storage-rules" },
    h("h4", { id: "mbm-storage-rules" }, w("storage.rules")), h("p.mb-quiet", {}, w("storage.rules.words")),
    h("label", {}, raw, h("span", {}, w("storage.raw_days"), h("small.mb-quiet", {}, w("storage.raw_days.words")))),
    h("label", {}, whole_runs, h("span", {}, w("storage.run_days"))),
    h("label", {}, archive, h("span", {}, w("storage.archive_first"))), concerns, h("div", {}, save, " ", saved));
  let rules = null, runs = [], awaited = null;

  const number = (input) => (input.value === "" ? null : Number(input.value));
  const formRules = () => ({ raw_days: number(raw), run_days: number(whole_runs), archive: archive.checked });
  const same = (one, other) => one.raw_days === other.raw_days && one.run_days === other.run_days && one.archive === other.archive;

  function take(storage) {
    const isEdited = rules && !same(rules, formRules());
    rules = storage.rules;
    runs = storage.look?.runs ?? runs;
    if (awaited && same(awaited, rules)) {
      awaited = null;
      text(saved, w("storage.saved"));
    }
    if (!isEdited) {
      raw.value = rules.raw_days ?? "";
      whole_runs.value = rules.run_days ?? "";
      archive.checked = rules.archive;
    }
    drawn();
  }

  function edited() {
    text(saved, "");
    drawn();
  }

  function drawn() {
    save.disabled = !rules || same(rules, formRules()) || !raw.validity.valid || !whole_runs.validity.valid;
    const days = number(whole_runs), before = link.now() - (days ?? 0) * DAY_S;
    const count = days === null ? 0 : runs.filter((run) => run.can_delete && run.ended !== null && run.ended < before).length;
    concerns.hidden = days === null;
    text(concerns, w("storage.run_days.concerns", { count: whole(count) }));
  }

  return { root, take };
}
