// Fetching into the draft: a model's config.json from the hub or a node, the memory of the nodes, the size of the data.
(() => {
  const board = (window.Megaboard = window.Megaboard || {});
  const panels = (board.panels = board.panels || {});
  let busy = null, modelId = "";

  // Made once: a bundle after every edit must not take the id away from under the cursor.
  function panel(element, kinds, form) {
    let answer = element.querySelector(".mb-fetch-answer");
    if (!answer) {
      answer = board.h("div", { class: "mb-fetch-answer", role: "status" });
      board.fill(element, board.h("div", { class: "mb-fetch mb-desk" }, form()), answer);
    }
    const told = board.wizard.bundle()?.fetched;
    if (told && told !== seen) settle(told);
    const isMine = kinds.includes(busy?.kind ?? told?.kind);
    for (const button of element.querySelectorAll(".mb-fetch button")) button.disabled = busy !== null;
    board.fill(answer, isMine && (busy ? progress() : said(told)));
  }

  let seen = null;
  function settle(told) {
    seen = told;
    busy = null;
  }

  function ask(kind, more = {}) {
    if (busy) return;
    busy = { kind };
    board.wizard.send("fetch", { kind, ...more });
    redraw();
  }

  function redraw() {
    for (const name of ["fetch_model", "fetch_memory", "fetch_samples", "fetch_speed"]) {
      const element = document.querySelector(`[data-panel="${name}"]`);
      if (element) panels[name](element);
    }
  }

  const progress = () => [board.h("span", { class: "mb-spinner", "aria-hidden": "true" }),
    board.t(`wizard.fetch.${busy.kind}.busy`, { id: modelId })];

  function said(told) {
    const { h, t } = board;
    const isDone = Object.keys(told.note).length > 0;
    const waits = told.keys.length > 0;
    // An unknown host key is no fault: it is asked about below.
    const problems = told.problems.filter((problem) => !waits || problem.code !== "host_key_unknown");
    return [isDone && h("p", { class: "mb-good" }, t(`wizard.fetch.${told.kind}.${told.done}`, told.note)),
      told.table && h("div", { class: "mb-found" }, board.table("mb-table", told.table.head, told.table.rows)),
      problems.map((problem) => drawProblem({ ...problem, again: () => ask(told.kind) })),
      waits && board.hostKeys(told.keys, () => ask(told.kind, { accept: told.keys.map((key) => key.fingerprint) }))];
  }

  function drawProblem(problem) {
    if (problem.code !== "needed_for_launch") return board.fields.drawProblem(problem);
    const goTo = () => board.fields.goTo(problem.at, problem.step);
    return board.h("div", { class: "mb-problem", "data-severity": "missing" },
      board.t("wizard.fetch.needs"), " ",
      board.h("button", { type: "button", class: "mb-apply", onclick: goTo }, problem.label));
  }

  function button(kind, more) {
    return board.h("button", { type: "button", class: "mb-button", "data-fetch": kind,
      onclick: () => ask(kind, more?.()) }, board.t(`wizard.fetch.${kind}`));
  }

  panels.fetch_model = (element) => panel(element, ["hub", "node"], () => {
    const { h, t } = board;
    const keep = (event) => { modelId = event.target.value.trim(); };
    const enter = (event) => { if (event.key === "Enter") ask("hub", { id: modelId }); };
    const input = h("input", { type: "text", class: "mb-fetch-id", placeholder: "Qwen/Qwen3-8B", spellcheck: "false",
      autocomplete: "off", value: modelId, oninput: keep, onkeydown: enter });
    return [h("label", {}, h("span", {}, t("wizard.fetch.id")), input), button("hub", () => ({ id: modelId })),
      button("node")];
  });

  panels.fetch_memory = (element) => panel(element, ["memory"], () => button("memory"));

  panels.fetch_samples = (element) => panel(element, ["samples"], () => button("samples"));

  const SPEED = ["speed", "keep_speed", "forget_calibration"];
  panels.fetch_speed = (element) => panel(element, SPEED, () => button("speed"));
})();
