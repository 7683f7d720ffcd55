// From samples to steps and hours, each with what it comes from.
(() => {
  const board = (window.Megaboard = window.Megaboard || {});
  const whole = (value) => value.toLocaleString("en");

  function draw(element, bundle) {
    const { h, t, fill } = board, plan = bundle.data.steps;
    if (!plan) return fill(element);
    if (!plan.steps) return fill(element, h("p", { class: "mb-quiet" }, t("wizard.steps.unknown")));
    fill(element, h("div", { class: "mb-facts" }, facts(plan)),
      plan.bound && plan.samples && (plan.bound === "packed" || plan.hours !== null) && h("p", { class: "mb-quiet" },
        t(`wizard.steps.bound.${plan.bound}`, { cutoff: whole(plan.cutoff) })));
  }

  function facts(plan) {
    const { h, t } = board;
    const fact = (name, value, from) => h("div", { class: "mb-fact", "data-fact": name },
      h("span", {}, t(`wizard.steps.${name}`)), h("b", {}, value), from && h("small", {}, from));
    const batch = t("wizard.steps.batch.from", { micro: plan.micro_batch, accumulation: plan.accumulation,
      copies: plan.data_parallel });
    const epochs = plan.each && plan.by_steps ? plan.steps / plan.each : plan.epochs;
    return [
      plan.samples && fact("samples", whole(plan.samples),
        plan.from ? t("wizard.steps.read", { from: plan.from }) : t("wizard.steps.typed")),
      plan.sequences && fact("sequences", whole(plan.sequences), t("wizard.steps.sequences.from", {
        cutoff: whole(plan.cutoff) })),
      fact("batch", whole(plan.batch), batch),
      plan.each && fact("each", whole(plan.each), t(`wizard.steps.each.${plan.keeps_rest ? "kept" : "dropped"}`)),
      fact("total", whole(plan.steps), plan.by_steps ? t("wizard.steps.set") : ""),
      plan.each && fact("epochs", board.rounded(epochs)),
      plan.hours !== null && fact("hours", duration(plan), [t("wizard.steps.hours.from", {
        seconds: board.rounded(plan.step_s) }), board.errorBeside("hours", plan.error)].filter(Boolean).join(board.wizard.lang() === "zh" ? "，" : ", ")),
    ];
  }

  function duration(plan) {
    const text = board.hours(plan.hours);
    return plan.error ? board.t("wizard.time.about", { value: text }) : text;
  }

  (board.panels = board.panels || {}).steps = draw;
})();
