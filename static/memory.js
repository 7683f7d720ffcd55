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
        memory.stages.map((stage) => h("div", { class: "mb-stack" },
          h("span", { class: "mb-stack-name" }, t("wizard.memory.stage", { stage: stage.stage })),
          h("span", { class: "mb-stack-bar" }, memory.terms.map((term) => stage[term] > 0 && h("i", {
            "data-term": term, style: { width: share(stage[term]) }, title: `${t(`term.${term}`)}: ${gib(stage[term])} GiB` }))),
          h("span", { class: `mb-stack-sum${stage.need_gib > memory.gpu_gib ? " mb-bad" : ""}` }, `${gib(stage.need_gib)} GiB`)))),
      table(memory, isOpen));
  }

  function table(memory, isOpen) {
    const { h, t, gib, count } = board;
    const names = [t("wizard.memory.stage_column"), t("wizard.memory.layers"), t("wizard.memory.parameters"),
      ...memory.terms.map((term) => t(`term.${term}`)), t("wizard.memory.sum")];
    const details = h("details", { class: "mb-twin" }, h("summary", {}, t("wizard.memory.figures")),
      h("div", { class: "mb-scroll" }, h("table", {}, h("caption", {}, t("wizard.memory.caption", { gib: gib(memory.gpu_gib) })),
        h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, memory.stages.map((stage) => h("tr", {}, h("th", { scope: "row" }, String(stage.stage)),
          h("td", {}, String(stage.layers)), h("td", {}, count(stage.parameters)),
          memory.terms.map((term) => h("td", {}, stage[term].toFixed(2))), h("td", {}, stage.need_gib.toFixed(2))))))));
    details.open = Boolean(isOpen);
    return details;
  }

  (board.panels = board.panels || {}).memory = draw;
})();
