// Where a job may come from: a recipe, or a file that somebody has already, with the report of its import.
(() => {
  const board = (window.Megaboard = window.Megaboard || {});
  const panels = (board.panels = board.panels || {});
  let isBusy = false, seen = null;

  function ask(kind, more) {
    if (isBusy) return;
    isBusy = true;
    board.wizard.send("fetch", { kind, ...more });
    redraw();
  }

  function redraw() {
    const element = document.querySelector('[data-panel="start"]');
    if (element) panels.start(element, board.wizard.bundle());
  }

  // Made once: a bundle after every edit must not take the text away from under the cursor.
  panels.start = (element, bundle) => {
    const recipes = bundle?.data?.recipes;
    if (!element.firstChild && recipes) board.fill(element, form(recipes));
    const answer = element.querySelector(".mb-start-answer");
    if (!answer) return;
    const told = ["recipe", "import"].includes(bundle?.fetched?.kind) ? bundle.fetched : null;
    if (told && told !== seen) {
      seen = told;
      isBusy = false;
      board.fill(answer, said(told));
    }
    for (const button of element.querySelectorAll("button")) button.disabled = isBusy;
  };

  function form(recipes) {
    const { h, t } = board;
    const choice = h("select", { id: "mb-recipe" }, h("option", { value: "" }, t("wizard.start.recipe.none")),
      recipes.map((recipe) => h("option", { value: recipe.key }, recipe.name)));
    const text = h("textarea", { id: "mb-import-text", rows: "10", spellcheck: "false", autocomplete: "off",
      placeholder: "model_name_or_path: /models/Qwen3-8B\nstage: sft\n..." });
    const file = h("input", { type: "file", id: "mb-import-file", accept: ".yaml,.yml,text/yaml",
      onchange: async () => { if (file.files[0]) text.value = await file.files[0].text(); } });
    const use = () => { if (choice.value) ask("recipe", { key: choice.value }); };
    return [
      h("div", { class: "mb-fetch mb-desk" },
        h("label", {}, h("span", {}, t("wizard.start.recipe")), choice),
        h("button", { type: "button", class: "mb-button", id: "mb-recipe-use", onclick: use },
          t("wizard.start.recipe.use"))),
      h("details", { class: "mb-import" }, h("summary", {}, t("wizard.start.import")),
        h("p", { class: "mb-quiet" }, t("wizard.start.import.lead")),
        h("label", { for: "mb-import-file" }, t("wizard.start.import.file")), file,
        h("label", { for: "mb-import-text" }, t("wizard.start.import.text")), text,
        h("button", { type: "button", class: "mb-button", id: "mb-import-do",
          onclick: () => ask("import", { text: text.value }) }, t("wizard.start.import.do"))),
      h("div", { class: "mb-start-answer", role: "status" })];
  }

  function said(told) {
    const { h, t } = board;
    const isDone = Object.keys(told.note).length > 0 && !told.problems.length;
    const done = told.kind === "recipe" ? "wizard.start.recipe.done"
      : told.lines.length ? "wizard.start.import.done" : "wizard.start.import.job";
    return [isDone && h("p", { class: "mb-good" }, t(done, told.note)),
      told.problems.map((problem) => board.fields.drawProblem(problem)), isDone && report(told.lines)];
  }

  // What is simply kept needs no reason; the rest does.
  function report(lines) {
    const { t, table } = board;
    const told = lines.filter((line) => line.outcome !== "kept" || line.reason);
    if (!told.length) return null;
    const names = ["key", "outcome", "value", "became", "why"];
    const rows = told.map((line) => [line.key, t(`import.outcome.${line.outcome}`), line.value, line.became,
      line.reason]);
    return table("mb-table mb-import-report", names.map((name) => t(`import.column.${name}`)), rows,
      t("wizard.start.import.report"));
  }
})();
