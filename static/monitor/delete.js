// Deletion of a run: the dialog that shows what is deleted and what stays, and the progress of deletions.
import { setCommands } from "../lib/commands.js";
import { attribute, h, keyed, text } from "../lib/dom.js";
import { whole } from "../lib/format.js";
import { w } from "../lib/words.js";
import { isLost } from "../web/connection.js";

// `link` is { act(name, values), poll(), forget(section) } of monitor.js. `gone()` is called after the request for a
// deletion.
export function DeleteDialog(link, gone = () => {}) {
  const goes = h("p"), stays = h("p", {}, w("delete.stays")), record = h("p.mb-quiet", {}, w("delete.record"));
  const kinds = h("ul.mbm-delete-list"), places = h("ul.mbm-delete-list"), refused = h("p.mbm-delete-refused", { role: "alert" });
  const archive = h("input", { type: "checkbox" }), folder = h("span");
  const plan = h("div.mbm-delete-plan", {}, kinds, stays, places, record, h("label", {}, archive, folder));
  const no = h("button.mb-button", { type: "button", autofocus: true, onclick: () => root.close() }, w("delete.keep"));
  const sure = h("button.mb-button.mbm-danger", { type: "button", onclick: () => {
    link.act("delete", { run, archive: archive.checked });
    root.close();
    gone();
  } }, w("delete.sure"));
  const heading = h("h3", { id: "mbm-delete" }, w("delete.title"));
  const root = h("dialog.mbm-ask.mbm-delete", { "aria-labelledby": "mbm-delete", onclose: () => { run = null; } },
    heading, goes, plan, refused, h("div.mbm-buttons", {}, no, sure));
  let run = null;

  function open(id) {
    if (isLost()) return;
    run = id;
    link.forget("erase");
    archive.checked = true;
    text(goes, w("delete.measuring"));
    plan.hidden = refused.hidden = sure.disabled = true;
    root.showModal();
    link.poll();
  }

  function take(deletion) {
    if (!deletion || deletion.run !== run) return;
    plan.hidden = sure.disabled = Boolean(deletion.refused);
    refused.hidden = !deletion.refused;
    setCommands(refused, deletion.refused ? `${deletion.refused.message} ${deletion.refused.fix}` : "");
    text(goes, deletion.refused ? "" : w("delete.goes", { name: deletion.name, size: deletion.total }));
    if (deletion.refused) return;
    lines(kinds, deletion.kinds);
    lines(places, deletion.places);
    stays.hidden = !deletion.places.length;
    text(folder, w("delete.archive", { folder: deletion.folder }));
  }

  return { root, open, take, query: () => (run === null ? {} : { erase: run }) };
}

function lines(list, texts) {
  keyed(list, texts, (line) => line, () => h("li"), text);
}

// One line for each deletion that a page has requested since the server started.
export function Deletions() {
  const root = h("div.mbm-deletions", { role: "status" });
  const update = (line, deletion) => {
    const key = deletion.phase === "done" && deletion.path ? "done.archive" : deletion.phase;
    attribute(line, "data-tone", { failed: "bad", done: "good" }[deletion.phase]);
    setCommands(line, w(`delete.${key}`, { run: deletion.run, rows: whole(deletion.rows), path: deletion.path,
      message: deletion.problem?.message, fix: deletion.problem?.fix }));
  };
  return { root, take: (deletions) => keyed(root, deletions, (deletion) => deletion.run, () => h("p"), update) };
}
