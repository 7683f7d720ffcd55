// The attempts of a run: where the newest one began, how many automatic restarts are left, and the actions in its line
// of the list.
import { attribute, h, text } from "../lib/dom.js";
import { whole } from "../lib/format.js";
import { moment } from "../lib/time.js";
import { w } from "../lib/words.js";

// Example: "Resumed from step 400 · automatic restarts: 1 used of [3]". It also says why a run waits.
export function Attempts(allow) {
  const about = h("span");
  const used = h("span");
  const count = h("input", { type: "number", min: 0, max: 99, step: 1, "aria-label": w("restarts.label"),
    onchange: () => count.value !== "" && allow(Math.max(0, Math.min(99, Math.round(Number(count.value))))) });
  const waits = h("p.mbm-waits", { hidden: true, role: "status" });
  const origin = h("a", { hidden: true });
  const root = h("div", {}, h("p.mbm-attempts.mb-quiet", {}, origin, about, h("label", {}, used, count)), waits);

  function take(head) {
    const [done, allowed] = head.restarts;
    root.hidden = head.is_watched;
    origin.hidden = !head.source;
    if (head.source) showOrigin(...head.source);
    const isOrigin = head.source && head.attempt === 1;
    text(about, isOrigin ? "" : head.checkpoint ? w("attempt.from", { step: whole(head.checkpoint) })
      : head.attempt > 1 ? w("attempt.start") : "");
    about.hidden = !about.textContent;
    text(used, w("restarts.used", { used: done }));
    if (document.activeElement !== count) count.value = allowed;
    count.parentElement.hidden = head.state === "finished";
    // A run that was just launched has no place in the queue: it starts at once.
    waits.hidden = !head.is_waiting || !(head.not_before || head.queue_place);
    if (!waits.hidden) text(waits, head.not_before ? w("waits.restart", { at: moment(head.not_before, false) })
      : w("waits", { place: head.queue_place }));
  }

  function showOrigin(run, step) {
    text(origin, w("origin", { run, step: whole(step) }));
    attribute(origin, "href", `#${encodeURI(`runs/${run}`)}`);
    attribute(origin, "data-go", `runs/${run}`);
  }

  return { root, take };
}

// The actions of a run in its line of the list. `act(name, values)` requests one.
export function RowActs(act, open, erase) {
  const button = (name, label, onclick) => h("button.mbm-chip", { type: "button", "data-do": name, "aria-label": label,
    title: label, onclick: (event) => {
      event.stopPropagation();
      onclick();
    } });
  let shown = null;
  const up = button("up", w("queue.up"), () => act("move", { run: shown.id, where: "up" }));
  const down = button("down", w("queue.down"), () => act("move", { run: shown.id, where: "down" }));
  const cancel = button("cancel", w("queue.cancel"), () => act("stop", { run: shown.id }));
  const resume = button("resume", w("resume"), () => open(shown.id));
  const again = button("again", w("queue.again.label"), () => act("resume", { run: shown.id }));
  const remove = button("delete", w("delete"), () => erase(shown.id));
  remove.textContent = w("delete");
  up.textContent = "↑";
  down.textContent = "↓";
  cancel.textContent = w("queue.cancel");
  resume.textContent = w("resume");
  again.textContent = w("queue.again");
  const root = h("div.mbm-row-acts", {}, up, down, cancel, resume, again, remove);

  function take(run, queued) {
    shown = run;
    const waits = run.queue_place !== null;
    up.hidden = down.hidden = !waits || queued < 2;
    up.disabled = run.queue_place === 1;
    down.disabled = run.queue_place === queued;
    cancel.hidden = !waits;
    resume.hidden = !run.can_resume || !run.has_begun;
    again.hidden = !run.can_resume || run.has_begun || run.needs_word;
    remove.hidden = !run.can_delete;
  }

  return { root, take };
}
