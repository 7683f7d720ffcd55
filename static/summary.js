// The estimate in one line under the stepper: does it fit, how full is a GPU, how fast and how long it runs.
(() => {
  const board = (window.Megaboard = window.Megaboard || {});
  let spoken = "";

  function draw(element, bundle) {
    const { h, t, gib, percent, count } = board;
    const figures = bundle.summary;
    if (!figures.sound) {
      board.fill(element, h("div", { class: "mb-summary", "data-state": "open" },
        h("strong", {}, t("wizard.summary.open", { count: figures.errors }))));
      return say(element, "");
    }
    const state = figures.fits === null ? "unknown" : !figures.fits ? "over" : figures.near ? "near" : "fits";
    const memory = figures.need_gib !== null && (figures.host
      ? t("wizard.summary.host", { need: gib(figures.host.need), node: gib(figures.host.node) })
      : t("wizard.summary.memory", { need: gib(figures.need_gib), gpu: gib(figures.gpu_gib) }));
    const verdict = t(`wizard.summary.${state}`);
    board.fill(element, h("div", { class: "mb-summary", "data-state": state },
      h("div", { class: "mb-verdict", title: figures.need_gib !== null && accuracy(figures.accuracy) },
        h("strong", {}, verdict),
        memory && h("span", {}, memory)),
      figures.need_gib !== null && h("div", { class: "mb-gauge", "aria-hidden": "true" },
        h("i", { style: { width: `${Math.min(100, 100 * figures.need_gib / figures.gpu_gib)}%` } })),
      fact("plan", figures.plan), paces(figures),
      figures.bubble !== null && fact("bubble", percent(figures.bubble)),
      fact("batch", figures.global_batch.toLocaleString("en")),
      fact("parameters", count(figures.parameters))), offer(bundle));
    say(element, verdict);
  }

  // A learning rate that was chosen for another batch: beside its field on its own step, here on the others.
  function offer(bundle) {
    const found = bundle.problems.find((problem) => problem.code === "learning_rate_batch");
    return found && board.wizard.step() !== found.step && board.fields.drawProblem(found);
  }

  // How far such figures were off: a computed number without its error says too much.
  function accuracy(known) {
    const { t, percent } = board;
    if (!known) return t("accuracy.unknown");
    if (known.run) return t("accuracy.calibrated", { run: known.run });
    const { own } = known, sentences = [board.errorWords("memory", known.expected)];
    if (own) sentences.push(t("accuracy.own", { group: t(`accuracy.group.${own.group}`), rows: own.rows,
      median: percent(own.median), largest: percent(own.largest) }));
    return sentences.join(board.wizard.lang() === "zh" ? "" : " ");
  }

  const fact = (name, value) => told(board.t(`wizard.summary.${name}`), value, board.t(`wizard.summary.${name}.long`));

  // Unknown where the GPU's speed, or the number of samples, is.
  function paces({ speed, hours, time_error: error }) {
    const { t, rounded } = board;
    const title = error && board.errorWords("time", error);
    return [speed !== null && told(t("wizard.time.speed"), rounded(speed), title),
      hours !== null && told(t("wizard.time.hours"), board.hours(hours), title)];
  }

  function told(name, value, title) {
    const { h } = board;
    return h("div", { class: "mb-fact", title }, h("span", {}, name), h("b", {}, String(value)));
  }

  // Read aloud only when the verdict turns, not at every keystroke.
  function say(element, text) {
    if (text === spoken) return;
    spoken = text;
    let region = element.parentElement.querySelector("[aria-live]");
    if (!region) {
      region = board.h("div", { "aria-live": "polite", class: "mb-only-read" });
      element.after(region);
    }
    region.textContent = text;
  }

  board.accuracy = accuracy;
  (board.panels = board.panels || {}).summary = draw;
})();
