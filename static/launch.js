// Launch: check the nodes, confirm host keys, start. The server's desk decides; this shows it and asks it.
(() => {
  const board = (window.Megaboard = window.Megaboard || {});
  let mine = false, clock = null, watched = 0, accepted = null;

  function draw(element, bundle) {
    const desk = bundle.data.launch;
    if (!desk || board.wizard.step() !== "launch") return;
    const { h } = board;
    const isBusy = ["checking", "copying", "launching"].includes(desk.phase);
    // Somebody else began, or this page was loaded again meanwhile: look on.
    if (isBusy && !mine && watched !== desk.version) {
      watched = desk.version;
      board.wizard.send("desk", { act: "watch" });
    }
    if (desk.phase === "launched" && mine === "launch") {
      mine = false;
      board.go(`runs/${desk.run}`);
    }
    if (!isBusy) mine = false;
    const focused = element.contains(document.activeElement) ? document.activeElement.dataset.act : null;
    board.fill(element, h("section", { class: "mb-card mb-section" },
      h("div", { class: "mb-desk" }, checkButton(desk, isBusy), launchButton(desk, isBusy),
        queueButton(desk, isBusy),
        h("p", { class: "mb-desk-words", role: "status" }, sentence(desk, isBusy))),
      desk.same && desk.warnings > 0 && warnings(element, bundle),
      (bundle.refusal || []).map((problem) => board.fields.drawProblem(problem)),
      desk.problems.map((problem) => board.fields.drawProblem(problem)),
      desk.copy && copyOffer(desk, isBusy),
      !desk.complete && board.review.list(bundle, "missing", "error"),
      h("p", { class: "mb-quiet" }, whoIsTold(desk.told))),
      desk.keys.length > 0 && hostKeys(desk.keys, () => accept(desk), isBusy), desk.checks && table(desk));
    if (focused) element.querySelector(`[data-act="${focused}"]`)?.focus();
    tick(element, desk, isBusy);
  }

  function checkButton(desk, isBusy) {
    const { t } = board;
    return button("check", t(desk.phase === "checked" ? "wizard.launch.check_again" : "wizard.launch.check"),
      !desk.complete || isBusy, !desk.ready && !desk.keys.length);
  }

  function launchButton(desk, isBusy) {
    const isOpen = desk.ready && (!desk.warnings || accepted === desk.version);
    return button("launch", board.t("wizard.launch.go", { name: desk.name }), !isOpen || isBusy, isOpen);
  }

  // Whoever launches or queues in spite of warnings has said so, for this very check.
  function warnings(element, bundle) {
    const { h, t } = board, desk = bundle.data.launch;
    const box = h("input", { type: "checkbox", "data-act": "accept_warnings", checked: accepted === desk.version,
      onchange: (event) => { accepted = event.target.checked ? desk.version : null; draw(element, bundle); } });
    return h("label", { class: "mb-accept" }, box, " ", t("wizard.launch.accept_warnings", { count: desk.warnings }));
  }

  // Needs no green check: the nodes are busy with another run, and are checked when this one's turn comes.
  function queueButton(desk, isBusy) {
    const isQueued = desk.phase === "queued" && desk.same;
    const isOpen = !desk.same || !desk.warnings || accepted === desk.version;
    return button("queue", board.t("wizard.launch.queue"), !desk.complete || isBusy || isQueued || !isOpen, false);
  }

  const whoIsTold = (places) => places.length
    ? board.t("wizard.launch.told", { to: places.join(", ") }) : commands(board.t("wizard.launch.untold"));

  // What node 0 has and others lack; nothing is copied unless somebody says so.
  function copyOffer(desk, isBusy) {
    const { h, t } = board;
    return h("div", { class: "mb-desk" }, button("copy", t("wizard.launch.copy"), isBusy, false),
      h("p", { class: "mb-desk-words" }, desk.copy, h("br"), h("small", { class: "mb-quiet" },
        t("wizard.launch.copy.lead"))));
  }

  function button(act, label, isOff, isPrimary) {
    return board.h("button", { type: "button", class: `mb-button${isPrimary ? " mb-primary" : ""}`, "data-act": act,
      disabled: isOff, onclick: () => ask(act, { accepted }) }, label);
  }

  function ask(act, more = {}) {
    mine = act;
    for (const one of document.querySelectorAll("[data-act]")) one.disabled = true;
    board.wizard.send("desk", { act, ...more });
  }

  const accept = (desk) => ask("accept", { fingerprints: desk.keys.map((key) => key.fingerprint) });

  // Never a button that is shut without the reason beside it.
  function sentence(desk, isBusy) {
    const { h, t } = board;
    const seconds = h("span", { "data-seconds": "", "aria-hidden": "true" });
    if (isBusy) return [h("span", { class: "mb-spinner", "aria-hidden": "true" }),
      t(`wizard.launch.${desk.phase}`, { count: desk.nodes, done: desk.copied[0], total: desk.copied[1] }), " ", seconds];
    if (!desk.complete) return t("wizard.launch.incomplete");
    if (desk.ready && desk.warnings) return h("span", { class: "mb-warn" }, t("wizard.launch.ready_warnings"));
    if (desk.ready) return h("span", { class: "mb-good" }, t("wizard.launch.ready"));
    const place = `runs/${desk.run}`;
    if (desk.phase === "launched")
      return [t("wizard.launch.launched"), " ", h("a", { href: `#${place}`, "data-go": place }, desk.run)];
    if (desk.phase === "queued" && desk.same)
      return [t("wizard.launch.queued"), " ", h("a", { href: `#${place}`, "data-go": place }, desk.run)];
    if (desk.phase === "checked" && !desk.same) return t("wizard.launch.changed");
    if (desk.keys.length) return t("wizard.launch.keys_wait");
    if (desk.phase === "checked") return h("span", { class: "mb-bad" }, t("wizard.launch.red"));
    return t("wizard.launch.begin", { count: desk.nodes });
  }

  function tick(element, desk, isBusy) {
    clearInterval(clock);
    if (!isBusy) return;
    const begun = Date.now() - 1000 * desk.elapsed_s;
    const show = () => {
      const place = element.querySelector("[data-seconds]");
      if (place) place.textContent = `${Math.round((Date.now() - begun) / 1000)} s`;
      else clearInterval(clock);
    };
    clock = setInterval(show, 1000);
    show();
  }

  // Keys that nodes show for the first time; `accept` is called once the user has compared them.
  function hostKeys(keys, accept, isBusy = false) {
    const { h, t } = board;
    const head = ["host", "type", "fingerprint", "command"].map((name) => t(`wizard.keys.${name}`));
    const rows = keys.map((key) =>
      [`${key.host}:${key.port}`, key.type, h("code", {}, key.fingerprint), h("code", {}, key.command)]);
    return h("section", { class: "mb-card mb-section" }, h("h3", {}, t("wizard.keys")),
      h("p", {}, t("wizard.keys.lead")),
      board.table("mb-table mb-keys", head, rows),
      h("div", { class: "mb-desk" }, h("button", { type: "button", class: "mb-button mb-primary", "data-act": "accept",
        disabled: isBusy, onclick: accept }, t("wizard.keys.accept", { count: keys.length }))));
  }

  function table(desk) {
    const { h, t } = board;
    const sign = { ok: "✓", warning: "!", failure: "✕", skipped: "–" };
    const { nodes, rows, findings } = desk.checks;
    const named = (node, rank) => h("th", { scope: "col", title: node },
      h("small", {}, t("wizard.checks.node", { rank })), node);
    const cell = (status) => h("td", { "data-status": status },
      h("span", { "aria-hidden": "true" }, sign[status]), " ", t(`check.status.${status}`));
    return h("section", { class: "mb-card mb-section" }, h("h3", {}, t("wizard.checks")), findings.map(drawFinding),
      board.table("mb-table mb-checks", [t("wizard.checks.check"), ...nodes.map(named)],
        rows.map((row) => [row.name, ...row.cells.map(cell)])),
      rows.some((row) => row.cells.includes("skipped")) && h("p", { class: "mb-quiet" }, t("wizard.checks.skipped")));
  }

  function drawFinding(finding) {
    const { h, t } = board;
    const goTo = () => board.fields.goTo(finding.at, finding.step);
    return h("div", { class: "mb-problem", "data-severity": finding.severity },
      h("b", {}, t("wizard.checks.finding", finding)), board.fields.gap(), board.fields.told(finding), board.fields.gap(),
      h("span", { class: "mb-fix" }, commands(finding.fix)),
      finding.unlock ? board.unlock(finding.unlock, () => ask("check"))
        : finding.at && h("button", { type: "button", class: "mb-apply", onclick: goTo }, finding.label));
  }

  // What stands between backticks is to be typed somewhere: it is shown as code, and copied by a click.
  function commands(text) {
    const { h } = board;
    return text.split("`").map((part, index) => index % 2 === 0 ? part
      : h("span", { class: "mb-command" }, h("code", {}, part), part.length > 20 && board.copyButton(part)));
  }

  board.hostKeys = hostKeys;
  (board.panels = board.panels || {}).launch = draw;
})();
