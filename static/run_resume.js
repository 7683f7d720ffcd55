// The next attempt of a run: a dialog that shows which checkpoints are complete on all nodes, and how often the gang is
// started again by itself.
(() => {
  const { el, moment, text, w, whole } = window.Megaboard.live;

  // `look` asks the server to look on the nodes; `resume(step)` starts, 0 being the beginning.
  function Resume({ look, resume }) {
    const button = el("button.mb-button.mb-primary", { type: "button", hidden: true, onclick: open }, w("resume"));
    const heading = el("h3", { id: "mbm-resume" }, w("resume.title"));
    const words = el("p", { role: "status" });
    const list = el("div.mbm-checkpoints", { role: "radiogroup", "aria-labelledby": "mbm-resume" });
    const no = el("button.mb-button", { type: "button", autofocus: true, onclick: () => root.close() }, w("resume.no"));
    const yes = el("button.mb-button.mb-primary", { type: "button", onclick: () => {
      root.close();
      resume(Number(chosen().value));
    } }, w("resume.go"));
    const root = el("dialog.mbm-ask.mbm-resume", { "aria-labelledby": "mbm-resume" }, heading, words, list,
      el("p.mb-quiet", {}, w("resume.note")), el("div.mbm-buttons", {}, no, yes));
    const chosen = () => list.querySelector("input:checked");
    let drawn = "";

    function open() {
      drawn = "";
      draw({ phase: "looking" });
      root.showModal();
      look();
    }

    function take(head) {
      button.hidden = !head.can_resume;
      if (!head.can_resume && root.open) root.close();
      if (root.open && head.resume) draw(head.resume);
    }

    function draw(found) {
      const state = JSON.stringify(found);
      if (state === drawn || found.phase === "offer") return;
      drawn = state;
      const { checkpoints = [], newest = null } = found;
      text(words, found.phase === "failed" ? found.problem.message
        : w(found.phase === "looking" ? "resume.looking" : newest === null ? "resume.none" : "resume.found"));
      const start = { step: 0, why: "" };
      const rows = found.phase === "found" ? [...checkpoints, start].map((one) => row(one, newest ?? 0)) : [];
      list.replaceChildren(...(found.phase === "failed" ? [el("p", {}, found.problem.fix)] : rows));
      yes.disabled = !chosen();
    }

    function row({ step, why }, newest) {
      const input = el("input", { type: "radio", name: "mbm-checkpoint", value: step, checked: step === newest,
        disabled: Boolean(why), onchange: () => { yes.disabled = false; } });
      return el("label", { "data-flawed": why ? "" : null }, input,
        el("span", {}, step ? w("resume.step", { step: whole(step) }) : w("resume.start")),
        el("small.mb-quiet", {}, why || (step && step === newest ? w("resume.newest") : "")));
    }

    return { button, root, open, take };
  }

  // "Attempt 2, from step 400 · automatic restarts: 1 used of [3]", and why a run waits.
  function Attempts(allow) {
    const about = el("span");
    const used = el("span");
    const count = el("input", { type: "number", min: 0, max: 99, step: 1, "aria-label": w("restarts.label"),
      onchange: () => count.value !== "" && allow(Math.max(0, Math.min(99, Math.round(Number(count.value))))) });
    const waits = el("p.mbm-waits", { hidden: true, role: "status" });
    const root = el("div", {}, el("p.mbm-attempts.mb-quiet", {}, about, el("label", {}, used, count)), waits);

    function take(head) {
      const [done, allowed] = head.restarts;
      root.hidden = head.is_watched;
      text(about, head.checkpoint ? w("attempt.from", { attempt: head.attempt, step: whole(head.checkpoint) })
        : head.attempt > 1 ? w("attempt.start", { attempt: head.attempt }) : "");
      about.hidden = !about.textContent;
      text(used, w("restarts.used", { used: done }));
      if (document.activeElement !== count) count.value = allowed;
      count.disabled = head.state === "finished";
      waits.hidden = !head.is_waiting;
      if (head.is_waiting) text(waits, head.not_before ? w("waits.restart", { at: moment(head.not_before, false) })
        : w("waits", { place: head.queue_place ?? "–" }));
    }

    return { root, take };
  }

  // What can be done with a run from its line in the list; `act(name, values)`.
  function RowActs(act, open) {
    const button = (name, label, onclick) => el("button.mbm-chip", { type: "button", "data-do": name, "aria-label": label,
      title: label, onclick: (event) => {
        event.stopPropagation();
        onclick();
      } });
    let shown = null;
    const up = button("up", w("queue.up"), () => act("move", { run: shown.id, where: "up" }));
    const down = button("down", w("queue.down"), () => act("move", { run: shown.id, where: "down" }));
    const cancel = button("cancel", w("queue.cancel"), () => act("stop", { run: shown.id }));
    const resume = button("resume", w("resume"), () => open(shown.id));
    up.textContent = "↑";
    down.textContent = "↓";
    cancel.textContent = w("queue.cancel");
    resume.textContent = w("resume");
    const root = el("div.mbm-row-acts", {}, up, down, cancel, resume);

    function take(run, queued) {
      shown = run;
      const waits = run.queue_place !== null;
      up.hidden = down.hidden = !waits || queued < 2;
      up.disabled = run.queue_place === 1;
      down.disabled = run.queue_place === queued;
      cancel.hidden = !waits;
      resume.hidden = !run.can_resume;
    }

    return { root, take };
  }

  window.Megaboard = Object.assign(window.Megaboard || {}, { Resume, Attempts, RowActs });
})();
