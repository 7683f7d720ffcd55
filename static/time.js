// Where the iteration's time goes: a waterfall whose rows are those of a table, so that it is read as well as seen.
(() => {
  const board = (window.Megaboard = window.Megaboard || {});
  const KINDS = { compute: "work", recompute: "work", bubble: "wait", optimizer: "step", offload: "step" };
  const kindOf = (name) => KINDS[name] ?? "talk";

  function draw(element, bundle) {
    const { h, t, fill } = board, time = bundle.data.time;
    if (!time?.is_known)
      return fill(element, h("p", { class: "mb-quiet" }, t(time ? "wizard.time.unknown" : "wizard.memory.unread")));
    fill(element,
      h("div", { class: "mb-facts" }, facts(time)),
      h("p", { class: "mb-quiet mb-time-error" }, certainty(time)),
      h("div", { class: "mb-legend", "aria-hidden": "true" }, [...new Set(time.parts.map(([name]) => kindOf(name)))]
        .map((kind) => h("span", {}, h("i", { class: "mb-swatch", "data-spent": kind }), t(`wizard.time.${kind}`)))),
      waterfall(time));
  }

  // All as fine as the whole needs.
  function seconds(value, whole) {
    const digits = whole >= 100 ? 1 : whole >= 10 ? 2 : 3, least = 10 ** -digits;
    return value < least ? `< ${least}` : value.toFixed(digits);
  }
  const share = (value) => value < 0.001 ? "< 0.1%" : board.percent(value);
  const rounded = (value, digits) => board.rounded(value, digits);

  function facts(time) {
    const { h, t, percent } = board;
    const about = (value) => time.error ? t("wizard.time.about", { value }) : value;
    const fact = (name, value, title, beside) => h("div", { class: "mb-fact", title }, h("span", {}, t(`wizard.time.${name}`)),
      h("b", {}, value), beside && h("small", { class: "mb-quiet" }, beside));
    return [
      fact("speed", about(rounded(time.tokens_per_s_per_gpu)), t("wizard.time.speed.long", {
        all: rounded(time.gpus * time.tokens_per_s_per_gpu), gpus: time.gpus }), board.errorBeside("speed", time.error)),
      fact("iteration", t("wizard.time.in_seconds", { count: rounded(time.iteration_s) })),
      fact("mfu", percent(time.mfu), t("wizard.time.mfu.long", { tflops: rounded(time.tflops) })),
      time.speed_up && h("div", { class: "mb-fact", title: t("wizard.time.speed_up.long") },
        h("span", {}, t("wizard.time.speed_up", { nodes: time.nodes })), h("b", {}, `${time.speed_up.toFixed(1)}×`)),
      fact("hours", time.hours === null ? h("small", {}, t("wizard.time.no_hours")) : about(hours(time.hours)), null,
        time.hours !== null && board.errorBeside("hours", time.error)),
    ];
  }

  const hours = (value) => value < 1 ? board.t("wizard.time.in_minutes", { count: rounded(60 * value, 2) })
    : board.t("wizard.time.in_hours", { count: rounded(value, value < 10 ? 2 : 3) });

  function certainty(time) {
    const { t } = board;
    return [time.calibrated_on && t("wizard.time.calibrated", { run: time.calibrated_on }),
      time.padding && t("wizard.time.padding", { share: share(time.padding) }),
      time.error && board.errorWords("time", time.error),
      time.probed_on && t("wizard.time.probed", { day: time.probed_on })]
      .filter(Boolean).join(board.wizard.lang() === "zh" ? "" : " ");
  }

  function waterfall(time) {
    const { h, t, percent } = board;
    let before = 0;
    const rows = time.parts.map(([name, value]) => {
      const from = before, part = value / time.iteration_s;
      before += part;
      const what = [t(`wizard.part.${name}.long`), name === "data" && time.exchange && t(`wizard.exchange.${time.exchange}`)]
        .filter(Boolean).join(board.wizard.lang() === "zh" ? "，" : ", ");
      return [
        h("th", { scope: "row", title: what }, t(`wizard.part.${name}`)),
        h("td", { class: "mb-fall" }, h("div", {}, h("i", { "data-spent": kindOf(name), "aria-hidden": "true",
          style: { left: `${100 * from}%`, width: `${100 * part}%` } }))),
        h("td", { class: "mb-figure" }, seconds(value, time.iteration_s)),
        h("td", { class: "mb-figure" }, share(part)),
        h("td", { class: "mb-what" }, what),
      ];
    });
    const sum = [h("th", { scope: "row" }, t("wizard.time.iteration")), h("td", { class: "mb-fall" }),
      h("td", { class: "mb-figure" }, seconds(time.iteration_s, time.iteration_s)), h("td", { class: "mb-figure" }, percent(1)),
      h("td", {})];
    const head = ["part", "bar", "seconds", "share", "what"].map((name) => h("th", { scope: "col",
      class: name === "seconds" || name === "share" ? "mb-figure" : null }, t(`wizard.time.column.${name}`)));
    return board.table("mb-table mb-spent", head, [...rows, sum], t("wizard.time.caption"));
  }

  // The expected error of an estimate: a sentence, and a few words beside a figure. Without sources, a run corrects it.
  const whole = (share) => `${Math.round(100 * share)}%`;
  const kind = (name, { sources }) => sources ? name : `${name}.calibrated`;
  board.errorWords = (name, known) => board.t(`accuracy.${kind(name, known)}`, { sources: known.sources,
    error: whole(known.error), low: whole(known.low) });
  board.errorBeside = (name, known) => known
    && board.t(`accuracy.beside.${known.sources ? name : "calibrated"}`, { error: whole(known.error) });
  board.hours = hours;
  (board.panels = board.panels || {}).time = draw;
})();
