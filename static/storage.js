// The disk space of the runs' data, the rules that delete it, and the deleted runs.
(() => {
  const { attribute, el, keyed, moment, text, w, whole } = window.Megaboard.live;
  const FILES = ["database", "reusable", "spare", "archives", "flight_records", "disk_free", "growth"];
  const SIZES = ["total", "curves", "other_ranks", "logs"];
  const DAY_S = 86400;

  // link: { act, ask, now } of monitor.js; erase(run): opens the dialog before a deletion.
  function Storage(link, erase) {
    const short = el("span.mb-quiet");
    const files = el("dl.mbm-storage-files", {}, ...FILES.map((name) => el("div", {}, el("dt", {}, w(`storage.${name}`)), el("dd"))));
    const compact = el("button.mb-button", { type: "button", onclick: () => link.act("compact") }, w("storage.compact"));
    const compactWords = el("p.mb-quiet");
    const compaction = el("div.mbm-storage-compact", { hidden: true }, compactWords, compact);
    const head = ["run", ...SIZES, ""].map((name) => el("th", { scope: "col" }, !name ? "" : ["total", "run"].includes(name) ? w(`storage.${name}`) : w(`storage.kind.${name}`)));
    const body = el("tbody");
    const table = el("table.mbm-table.mbm-storage-runs", {}, el("caption.mbm-spoken", {}, w("storage.runs")), el("thead", {}, el("tr", {}, ...head)), body);
    const rules = Rules(link);
    const deleted = el("ul.mbm-delete-list");
    const gone = el("div", { hidden: true }, el("h4", {}, w("storage.deleted")), deleted);
    const inner = el("div.mbm-storage-inner", {}, files, compaction, rules.root,
      el("h4", {}, w("storage.runs")), el("p.mb-quiet", {}, `${w("storage.measured")} ${w("storage.estimated")}`),
      el("div.mbm-scroll.mbm-storage-scroll", { tabindex: "0" }, table), gone);
    const root = el("details.mb-card.mbm-storage", { ontoggle: () => root.open && link.ask() }, el("summary", {}, el("strong", {}, w("storage")), " ", short), inner);

    function take(found) {
      if (!found) return;
      rules.take(found);
      takeCompaction(found);
      gone.hidden = !found.deleted.length;
      keyed(deleted, found.deleted, (one) => one.run, () => el("li", {}, el("span"), el("small")), (item, one) => {
        text(item.firstChild, w("storage.deleted.line", { at: moment(one.deleted), run: one.run, by: w(`storage.by.${one.by}`) }));
        text(item.lastChild, one.archive ? w("storage.archive_at", { path: one.archive }) : "");
      });
      text(short, found.look ? "" : w("delete.measuring"));
      if (found.look) takeLook(found.look);
    }

    function takeLook(look) {
      FILES.forEach((name, place) => text(files.children[place].lastChild, name === "growth" ? growth(look) : look[name]));
      keyed(body, look.runs, (run) => run.id, () => makeRow(erase), updateRow);
    }

    function growth(look) {
      return look.growth === null ? w("storage.growth.unknown") : w("storage.growth.of", { size: look.growth, hours: look.growth_hours });
    }

    function takeCompaction(found) {
      const problem = found.compacting?.problem, busy = found.compacting && !problem;
      compaction.hidden = !found.look || (found.look.gives_back && !found.compacting);
      compact.disabled = Boolean(busy);
      attribute(compactWords, "data-tone", problem ? "bad" : null);
      text(compactWords, problem ? `${problem.message} ${problem.fix}` : w(busy ? "storage.compacting" : "storage.compact.words"));
    }

    return { root, take, wanted: () => (root.open ? { storage: true } : {}) };
  }

  function makeRow(erase) {
    const button = el("button.mbm-chip", { type: "button", onclick: () => erase(row.dataset.key) }, w("delete"));
    const row = el("tr", {}, el("td", {}, el("a"), el("code.mb-quiet")), ...SIZES.map(() => el("td.mbm-num")), el("td", {}, button));
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

  // Days until rows and runs are deleted; empty: never. A field that is being edited stays as it is.
  function Rules(link) {
    const days = () => el("input", { type: "number", min: 0, max: 36500, step: 1, placeholder: w("storage.never"), oninput: edited });
    const raw = days(), whole_runs = days(), archive = el("input", { type: "checkbox", onchange: edited });
    const concerns = el("p.mbm-storage-concerns", { role: "status" }), saved = el("span.mbm-storage-saved", { role: "status" });
    const save = el("button.mb-button", { type: "button", disabled: true, onclick: () => {
      awaited = wanted();
      link.act("retention", awaited);
    } }, w("storage.save"));
    const root = el("section.mbm-storage-rules", { "aria-labelledby": "mbm-storage-rules" },
      el("h4", { id: "mbm-storage-rules" }, w("storage.rules")), el("p.mb-quiet", {}, w("storage.rules.words")),
      el("label", {}, raw, el("span", {}, w("storage.raw_days"), el("small.mb-quiet", {}, w("storage.raw_days.words")))),
      el("label", {}, whole_runs, el("span", {}, w("storage.run_days"))),
      el("label", {}, archive, el("span", {}, w("storage.archive_first"))), concerns, el("div", {}, save, " ", saved));
    let rules = null, runs = [], awaited = null;

    const number = (input) => (input.value === "" ? null : Number(input.value));
    const wanted = () => ({ raw_days: number(raw), run_days: number(whole_runs), archive: archive.checked });
    const same = (one, other) => one.raw_days === other.raw_days && one.run_days === other.run_days && one.archive === other.archive;

    function take(found) {
      const isEdited = rules && !same(rules, wanted());
      rules = found.rules;
      runs = found.look?.runs ?? runs;
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
      save.disabled = !rules || same(rules, wanted()) || !raw.validity.valid || !whole_runs.validity.valid;
      const days = number(whole_runs), before = link.now() - (days ?? 0) * DAY_S;
      const count = days === null ? 0 : runs.filter((run) => run.can_delete && run.ended !== null && run.ended < before).length;
      concerns.hidden = days === null;
      text(concerns, w("storage.run_days.concerns", { count: whole(count) }));
    }

    return { root, take };
  }

  window.Megaboard = Object.assign(window.Megaboard || {}, { Storage });
})();
