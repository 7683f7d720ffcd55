// The strategy table: asked of the server when it is shown, for it searches the plans of every engine.
(() => {
  const board = (window.Megaboard = window.Megaboard || {});
  let asked = 0;

  async function draw(element, bundle) {
    const { h, t, fill } = board, mine = (asked = bundle.at);
    if (!element.childElementCount) fill(element, h("p", { class: "mb-quiet" }, t("wizard.strategies.asking")));
    let got = null;
    try {
      const answer = await fetch(`/api/strategies?lang=${board.wizard.lang()}`);
      got = answer.ok ? await answer.json() : null;
    } catch { /* said below */ }
    if (mine !== asked) return;
    const text = JSON.stringify(got);
    if (element.dataset.text === text) return;
    element.dataset.text = text;
    if (!got?.rows.length) return fill(element, h("p", { class: "mb-quiet" }, got?.why ?? t("wizard.plan.ask.failed")));
    // Without a known speed or number of samples there is nothing to say.
    const isEmpty = { speed: got.rows.every((row) => row.speed === null), hours: got.rows.every((row) => row.hours === null) };
    const names = ["name", "memory", "speed", "hours", "why", "rule", "choose"].filter((name) => !isEmpty[name]);
    const head = names.map((name) => h("th", { scope: "col",
      class: ["speed", "hours"].includes(name) ? "mb-figure" : null }, t(`wizard.strategies.${name}`)));
    fill(element, h("p", { class: "mb-quiet" }, t("wizard.strategies.lead")),
      got.batch && h("p", { class: "mb-problem", "data-severity": "note" }, got.batch.join(board.wizard.lang() === "zh" ? "" : " ")),
      board.table("mb-table mb-strategies", head, got.rows.map((row) => names.map((name) => line(row, got.gpu_gib)[name]))));
  }

  function line(row, gpu) {
    const { h, t, meter, rounded, hourCount } = board;
    return {
      name: h("th", { scope: "row", "data-recommended": row.recommended }, row.name,
        row.recommended && h("span", { class: "mb-best" }, t("wizard.strategies.best")),
        row.plan && h("small", {}, row.plan)),
      memory: h("td", {}, row.plan ? meter(row.need_gib, gpu,
        row.near ? "wizard.near" : row.fits ? "wizard.fits" : row.over ? "wizard.over" : "wizard.over.host", !row.fits) : "–"),
      speed: h("td", { class: "mb-figure" }, row.fits && row.speed ? rounded(row.speed) : "–"),
      hours: h("td", { class: "mb-figure" }, row.fits && row.hours !== null ? hourCount(row.hours) : "–"),
      why: h("td", {}, row.why, row.is_unfit && h("span", { class: "mb-unloaded" }, "⊘ ", t("wizard.plan.mark.unfit"))),
      rule: h("td", { class: "mb-rule" }, row.rule ? [row.rule.words, row.rule.meant && h("span", { class: "mb-meant" },
        t("wizard.strategies.meant"))] : "–"),
      choose: h("td", {}, row.is_own ? h("span", { class: "mb-quiet" }, t("wizard.strategies.own")) : row.plan
        && h("button", { type: "button", class: "mb-tool", "aria-label": t("wizard.strategies.choose.long", { name: row.name }),
          onclick: () => board.wizard.send("apply", { edits: row.edits }) }, t("wizard.plan.choose"))),
    };
  }

  (board.panels = board.panels || {}).strategies = draw;
})();
