// The table of legal plans. Only the rows in view are in the document, so an edit costs the same for 20 and for 2,000.
(() => {
  const board = (window.Megaboard = window.Megaboard || {});
  const ROW = 36, SPARE = 6;
  const SIZES = ["tensor", "pipeline", "virtual_pipeline", "context", "expert", "expert_tensor"];
  const ALWAYS = new Set(["tensor", "pipeline"]);
  const keyOf = (sizes) => SIZES.map((name) => sizes[name]).join("-");
  let rows = [], columns = [], chosen = "", gpu = 1, keepsBatch = false, place = null;

  function draw(element, bundle) {
    const plans = bundle.data.plans;
    if (element !== place) build(element);
    if (!plans) return;
    const part = (name) => element.querySelector(`.mb-plans-${name}`);
    const isListed = plans.rows.some((row) => keyOf(row) === keyOf(plans.own));
    part("note").textContent = plans.why;
    part("else").textContent = board.t("wizard.plan.elsewhere");
    part("else").hidden = !plans.rows.length || isListed;
    part("box").hidden = !plans.rows.length;
    part("order").hidden = plans.rows.length < 2;
    if (!plans.rows.length) return;
    rows = plans.rows;
    keepsBatch = plans.keeps_batch;
    gpu = plans.gpu_gib;
    const before = chosen;
    if (board.wizard.isSettled()) chosen = keyOf(plans.own);
    columns = SIZES.filter((name) => (rows.length > 1 && ALWAYS.has(name)) || rows.some((row) => row[name] > 1));
    header(element);
    paint();
    if (chosen === before) return;
    bringIntoView();
    paint();
  }

  function bringIntoView() {
    const box = place.querySelector(".mb-plans-box"), index = rows.findIndex((row) => keyOf(row) === chosen);
    if (index < 0) return;
    if (index * ROW < box.scrollTop) box.scrollTop = index * ROW;
    else if ((index + 2) * ROW > box.scrollTop + box.clientHeight) box.scrollTop = (index + 2) * ROW - box.clientHeight;
  }

  function build(element) {
    const { h, t } = board;
    place = element;
    const grid = { class: "mb-plans", role: "grid", tabindex: "0", "aria-label": t("wizard.plans"), onkeydown: onKey };
    const table = h("table", grid, h("thead", {}), h("tbody", { onclick: onClick }));
    board.fill(element, h("p", { class: "mb-plans-note" }),
      h("p", { class: "mb-plans-else mb-problem", "data-severity": "warning" }),
      h("div", { class: "mb-plans-box", onscroll: () => requestAnimationFrame(paint) }, table),
      h("p", { class: "mb-plans-order mb-quiet" }, t("wizard.plan.order")));
  }

  function header(element) {
    const { h, t } = board;
    const names = [...columns.map((name) => [t(`wizard.column.${name}`), t(`wizard.column.${name}.long`)]),
      ...["data", "micro_batch", "accumulation", "memory", "bubble"].map((name) =>
        [t(`wizard.column.${name}`), t(`wizard.column.${name}.long`)])];
    const cells = names.map(([short, long], index) => h("th", { scope: "col", role: "columnheader", title: long,
      class: index === names.length - 2 ? "mb-wide" : null }, short));
    const head = element.querySelector("thead");
    const isNew = head.textContent !== names.map(([short]) => short).join("");
    if (isNew) board.fill(head, h("tr", { role: "row" }, cells));
    element.querySelector("table").setAttribute("aria-rowcount", String(rows.length + 1));
  }

  function paint() {
    const box = place.querySelector(".mb-plans-box"), body = place.querySelector("tbody");
    const first = Math.max(0, Math.floor(box.scrollTop / ROW) - SPARE);
    const last = Math.min(rows.length, first + Math.ceil((box.clientHeight || 400) / ROW) + 2 * SPARE);
    body.replaceChildren(space(first), ...rows.slice(first, last).map((row, index) => line(row, first + index)),
      space(rows.length - last));
    const index = rows.findIndex((row) => keyOf(row) === chosen);
    const table = place.querySelector("table");
    if (index >= first && index < last) table.setAttribute("aria-activedescendant", `plan-${index}`);
    else table.removeAttribute("aria-activedescendant");
  }

  const space = (count) => board.h("tr", { "aria-hidden": "true", style: { height: `${count * ROW}px` } });

  function line(row, index) {
    const { h, t, gib, percent } = board;
    const isChosen = keyOf(row) === chosen;
    const cell = (text, name) => h("td", { role: "gridcell", class: name }, text);
    return h("tr", { role: "row", id: `plan-${index}`, "data-index": index, "aria-rowindex": index + 2,
        "aria-selected": String(isChosen), class: row.fits === false ? "mb-over" : null },
      columns.map((name) => cell(String(row[name]), row[name] === 1 ? "mb-one" : null)),
      cell(row.data), cell(row.micro_batch), cell(row.accumulation),
      h("td", { role: "gridcell", class: "mb-wide" }, h("div", { class: "mb-meter" },
        h("span", { class: "mb-meter-bar", "aria-hidden": "true" },
          h("i", { style: { width: `${Math.min(100, 100 * row.need_gib / gpu)}%` } })),
        h("span", { class: "mb-meter-text" }, `${gib(row.need_gib)} GiB`),
        h("span", { class: "mb-meter-verdict" }, t(row.fits ? "wizard.fits" : "wizard.over")))),
      cell(percent(row.bubble)));
  }

  function choose(index) {
    const row = rows[index];
    if (!row || keyOf(row) === chosen) return;
    chosen = keyOf(row);
    bringIntoView();
    paint();
    const plan = Object.fromEntries(SIZES.map((name) => [name, row[name]]));
    board.wizard.sendNewest("choose", { plan: { ...plan, accumulation: keepsBatch ? row.accumulation : null } });
  }

  function onClick(event) {
    const line = event.target.closest("[data-index]");
    if (!line) return;
    place.querySelector("table").focus({ preventScroll: true });
    choose(Number(line.dataset.index));
  }

  function onKey(event) {
    const page = Math.floor(place.querySelector(".mb-plans-box").clientHeight / ROW) - 2;
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -rows.length, End: rows.length };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const now = rows.findIndex((row) => keyOf(row) === chosen);
    choose(Math.max(0, Math.min(rows.length - 1, now + steps[event.key])));
  }

  (board.panels = board.panels || {}).plans = draw;
})();
