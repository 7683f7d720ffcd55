// The chosen plan's memory: one stacked bar a pipeline stage against the GPU's size, and the same as a table.
(() => {
  const board = (window.Megaboard = window.Megaboard || {});

  function draw(element, bundle) {
    const { h, t, gib } = board;
    const memory = bundle.data.memory;
    if (!memory) {
      board.fill(element, h("p", { class: "mb-quiet" }, t("wizard.memory.unread")));
      return;
    }
    const isOpen = element.querySelector("details")?.open;
    const whole = Math.max(memory.gpu_gib, ...memory.stages.map((stage) => stage.need_gib));
    const share = (value) => `${100 * value / whole}%`;
    board.fill(element,
      h("div", { class: "mb-legend" }, memory.terms.map((term) =>
        h("span", {}, h("i", { "data-term": term, "aria-hidden": "true" }), t(`term.${term}`)))),
      h("div", { class: "mb-stacks", "aria-hidden": "true" },
        h("div", { class: "mb-limit", style: { "--at": memory.gpu_gib / whole } },
          h("span", {}, t("wizard.memory.limit", { gib: gib(memory.gpu_gib) }))),
        memory.stages.map((stage) => stack(memory, stage, share))),
      figures(memory, isOpen));
  }

  function stack(memory, stage, share) {
    const { h, t, gib } = board;
    const part = (term) => stage[term] > 0 && h("i", { "data-term": term, style: { width: share(stage[term]) },
      title: `${t(`term.${term}`)}: ${gib(stage[term])} GiB` });
    const isOver = stage.need_gib > memory.gpu_gib;
    return h("div", { class: "mb-stack" },
      h("span", { class: "mb-stack-name" }, t("wizard.memory.stage", { stage: stage.stage })),
      h("span", { class: "mb-stack-bar" }, memory.terms.map(part)),
      h("span", { class: isOver ? "mb-stack-sum mb-bad" : "mb-stack-sum" }, `${gib(stage.need_gib)} GiB`));
  }

  function figures(memory, isOpen) {
    const { h, t, gib, count } = board;
    const head = [t("wizard.memory.stage_column"), t("wizard.memory.layers"), t("wizard.memory.parameters"),
      ...memory.terms.map((term) => t(`term.${term}`)), t("wizard.memory.sum")];
    const rows = memory.stages.map((stage) => [String(stage.stage), String(stage.layers), count(stage.parameters),
      ...memory.terms.map((term) => stage[term].toFixed(2)), stage.need_gib.toFixed(2)]);
    const caption = t("wizard.memory.caption", { gib: gib(memory.gpu_gib) });
    const details = h("details", { class: "mb-twin" }, h("summary", {}, t("wizard.memory.figures")),
      board.table(null, head, rows, caption));
    details.open = Boolean(isOpen);
    return details;
  }

  (board.panels = board.panels || {}).memory = draw;
})();
