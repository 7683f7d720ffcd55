// The run that the draft goes on from: named on every step, with what of the draft its checkpoint cannot be loaded into.
(() => {
  const board = (window.Megaboard = window.Megaboard || {});
  let drawn = "";

  function draw(element, bundle) {
    const { h, t, fill } = board, { source } = bundle, told = JSON.stringify([source, board.wizard.step() === "launch"]);
    if (told === drawn && element.childElementCount === Number(Boolean(source))) return;
    drawn = told;
    if (!source) return fill(element);
    const { problems } = source, place = `runs/${source.run}`;
    const edits = Object.assign({}, ...problems.map((problem) => problem.edits ?? {}));
    const bound = source.bound.join(board.wizard.lang() === "zh" ? "、" : ", ");
    const state = problems.length ? "unfit" : source.bound.length ? "fits" : "free";
    fill(element, h("section", { class: "mb-card mb-continuing", "data-state": state, "aria-label": t("wizard.continuing") },
      h("div", { class: "mb-desk" },
        h("div", { class: "mb-continuing-words" },
          h("p", {}, h("b", {}, t("wizard.continuing.step", { step: source.step.toLocaleString("en") })), " ",
            h("a", { href: `#${place}`, "data-go": place }, source.run)),
          h("p", { role: "status" }, t(`wizard.continuing.${state}`, { bound }))),
        Object.keys(edits).length > 0 && h("button", { type: "button", class: "mb-button", "data-do": "restore",
          onclick: () => board.wizard.send("apply", { edits }) }, t("wizard.continuing.restore")),
        h("button", { type: "button", class: "mb-button", "data-do": "begin_anew",
          onclick: () => board.wizard.send("fetch", { kind: "begin_anew" }) }, t("wizard.continuing.off"))),
      board.wizard.step() !== "launch" && problems.map(briefly).map(board.fields.drawProblem)));
  }

  // One button takes all of it back, and what to do is said once for what is alike. The launch step lists them itself.
  function briefly(problem, at, problems) {
    const isLast = problems.findLastIndex((other) => other.code === problem.code) === at;
    return { ...problem, edits: null, fix: isLast ? problem.fix : "" };
  }

  (board.panels = board.panels || {}).continuing = draw;
})();
