// Tags and a note of a run, and whether the list hides it.
import { fill, h, keyed, text } from "../lib/dom.js";
import { w } from "../lib/words.js";
import { isLost } from "../web/connection.js";

// Shows tags as chips. A press on a tag calls `search` with it.
export function showTags(parent, tags, search) {
  keyed(parent, tags, (tag) => tag, (tag) => h("button.mbm-tag", { type: "button", onclick: () => search(tag) }), text);
  parent.hidden = !tags.length;
}

// The tags and the note below a run's title, with the dialog that edits them. `save(labels)` sends them.
export function Labels(save) {
  const tags = h("span.mbm-tags");
  const note = h("p.mbm-note");
  const edit = h("button.mbm-chip", { type: "button", onclick: open }, w("labels.edit"));
  const tagsInput = h("input", { type: "text", id: "mbm-labels-tags", maxlength: "800" });
  const noteInput = h("textarea", { id: "mbm-labels-note", rows: "5", maxlength: "4000" });
  const hidden = h("input", { type: "checkbox" });
  const form = h("form", { method: "dialog", onsubmit: submit },
    h("h3", { id: "mbm-labels" }, w("labels.title")),
    h("label", { for: "mbm-labels-tags" }, w("labels.tags")), tagsInput, h("small.mb-quiet", {}, w("labels.tags.help")),
    h("label", { for: "mbm-labels-note" }, w("labels.note")), noteInput,
    h("label.mbm-check", {}, hidden, h("span", {}, w("labels.hidden"))),
    h("div.mbm-buttons", {}, h("button.mb-button", { type: "button", onclick: () => dialog.close() }, w("labels.cancel")),
      h("button.mb-button.mb-primary", { type: "submit" }, w("labels.save"))));
  const dialog = h("dialog.mbm-ask.mbm-labels", { "aria-labelledby": "mbm-labels" }, form);
  const root = h("div.mbm-labels-line", {}, tags, edit, note, dialog);
  let shown = { tags: [], note: "", hidden: false };

  function take(labels) {
    shown = labels;
    fill(tags, labels.tags.map((tag) => h("span.mbm-tag", {}, tag)));
    tags.hidden = !labels.tags.length;
    text(note, labels.note);
    note.hidden = !labels.note;
  }

  function open() {
    if (isLost()) return;
    tagsInput.value = shown.tags.join(", ");
    noteInput.value = shown.note;
    hidden.checked = shown.hidden;
    dialog.showModal();
    tagsInput.focus();
  }

  function submit() {
    const written = tagsInput.value.split(/[,，]/).map((tag) => tag.trim()).filter(Boolean);
    save({ tags: [...new Set(written)], note: noteInput.value.trim(), hidden: hidden.checked });
  }

  return { root, take };
}
