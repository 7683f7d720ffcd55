// The help beside a field: a button that opens what the parameter means and what other values of it do to this job.
// Asked of the server when it is opened, never with an edit.
(() => {
  const board = (window.Megaboard = window.Megaboard || {});
  const PREFIX = "field-", WIDTH = 600, GAP = 8, BUTTON = 20;
  const pathOf = (block) => block.id.slice(PREFIX.length).replaceAll("-", ".");
  let open = null;

  function addButtons() {
    const { h, t } = board;
    for (const block of document.querySelectorAll(`.block[id^="${PREFIX}"]:not(:has(> .mb-ask))`)) {
      const label = block.querySelector("[data-testid='block-info'], .label-text")?.textContent.trim();
      block.append(h("button", { type: "button", class: "mb-ask", "aria-haspopup": "dialog", "aria-expanded": "false",
        "aria-label": t("wizard.help.ask", { name: label || pathOf(block) }), onclick: toggle }, "?"));
    }
  }

  function toggle(event) {
    const button = event.currentTarget, wasOpen = open?.button === button;
    close();
    if (!wasOpen) show(button, button.closest(".block"));
  }

  function close() {
    open?.box.hidePopover();
  }

  function show(button, block) {
    const { h } = board;
    const box = h("div", { class: "mb-help", popover: "auto", role: "dialog", tabindex: "-1",
      "aria-labelledby": `${block.id}-help` });
    box.addEventListener("toggle", ({ newState }) => newState === "closed" && closed(box));
    block.append(box);
    open = { box, button, block };
    button.setAttribute("aria-expanded", "true");
    fillIn(box, block, null);
    box.showPopover();
    place(box, block);
    box.focus();
    ask();
  }

  function closed(box) {
    if (open?.box === box) {
      open.button.setAttribute("aria-expanded", "false");
      open = null;
    }
    box.remove();
  }

  async function ask() {
    const asked = open;
    let got = null;
    try {
      const answer = await fetch(`/api/help?path=${pathOf(asked.block)}&lang=${board.wizard.lang()}`);
      got = answer.ok ? await answer.json() : null;
    } catch { /* said below */ }
    if (open !== asked) return;
    fillIn(asked.box, asked.block, got ?? { failed: true });
    place(asked.box, asked.block);
  }

  // At the side of its field where there is room, else below it; it scrolls with the page.
  function place(box, block) {
    const at = block.getBoundingClientRect(), { clientWidth, clientHeight } = document.documentElement;
    const width = Math.min(WIDTH, clientWidth - 2 * GAP);
    box.style.width = `${width}px`;
    const lowest = Math.max(GAP, clientHeight - box.offsetHeight - GAP);
    const sides = [at.right + GAP, at.left - GAP - width];
    const side = sides.find((left) => left >= GAP && left + width <= clientWidth - GAP);
    const left = side ?? Math.max(GAP, Math.min(at.right - width, clientWidth - width - GAP));
    const top = Math.max(GAP, Math.min(side === undefined ? at.top + BUTTON + GAP : at.top, lowest));
    box.style.left = `${left + scrollX}px`;
    box.style.top = `${top + scrollY}px`;
  }

  function fillIn(box, block, got) {
    const { h, t, fill } = board;
    const name = got?.name ?? block.querySelector("[data-testid='block-info']")?.textContent ?? pathOf(block);
    const head = h("div", { class: "mb-help-head" }, h("h4", { id: `${block.id}-help` }, name),
      h("code", {}, got?.path ?? pathOf(block)),
      h("button", { type: "button", class: "mb-tool", onclick: close }, t("wizard.help.close")));
    if (!got || got.failed)
      return fill(box, head, h("p", { class: "mb-quiet", role: "status" }, t(`wizard.help.${got ? "failed" : "asking"}`)));
    fill(box, head, h("p", {}, got.meaning), list(got.facts),
      got.rows.length > 0 && figures(got), got.why && h("p", { class: "mb-quiet" }, got.why),
      got.guides && h("div", { class: "mb-help-guides" }, h("b", {}, t("wizard.help.guides")), " ", got.guides),
      list(got.effects), got.names.length > 0 && names(got.names), list([...got.values, ...keysOf(got.keys)], "mb-help-small"));
  }

  const list = (pairs, classes) => pairs.length > 0 && board.h("dl", { class: classes }, pairs.map(([name, words]) =>
    board.h("div", {}, board.h("dt", {}, name), board.h("dd", {}, words))));

  const names = (known) => board.h("details", { class: "mb-help-names" },
    board.h("summary", {}, board.t("wizard.help.names", { count: known.length })),
    list(known.map(([name, words]) => [board.h("code", {}, name), words])));

  function keysOf(keys) {
    const readers = [...new Set(keys.map(([reader]) => reader))];
    return readers.map((reader) => [reader, keys.filter(([one]) => one === reader)
      .map(([, name, since], index) => [index ? ", " : "", board.h("code", {}, name), since ? ` (${since})` : ""])]);
  }

  function figures(got) {
    const { h, t } = board, own = got.rows.find((row) => row.own);
    const head = ["value", ...got.columns].map((name) => t(`wizard.help.column.${name}`));
    const rows = got.rows.map((row) => [named(row), ...cells(row, own, got.columns)]);
    return board.table("mb-table mb-help-figures", [...head, ""], rows, t("wizard.help.here"));
  }

  function named(row) {
    const { h, t } = board;
    return h("th", { scope: "row", "data-own": row.own }, row.value,
      row.own && h("span", { class: "mb-best" }, t("wizard.help.now")));
  }

  function cells(row, own, columns) {
    const { h, t } = board;
    if (row.problem) return [h("td", { colspan: String(columns.length + 1), class: "mb-help-refused" }, row.problem)];
    const use = !row.own && h("button", { type: "button", class: "mb-tool",
      "aria-label": t("wizard.help.use.long", { value: row.value }), onclick: () => choose(row) }, t("wizard.help.use"));
    return [...columns.map((name) => h("td", { class: name === "memory" && !row.fits ? "mb-bad" : null },
      SHOWN[name](row[name]), row.own ? null : change(name, row[name], own[name]))), h("td", {}, use)];
  }

  const rounded = (value) => Number(value.toPrecision(3)).toLocaleString("en");
  const SHOWN = {
    memory: (value) => `${board.gib(value)} GiB`,
    speed: (value) => value === null ? "–" : rounded(value),
    bubble: (value) => board.percent(value),
    host: (value) => value ? `${board.gib(value)} GiB` : "–",
    batch: (value) => value.toLocaleString("en"),
  };

  // Against the present value: GiB and points are differences, speeds are shares.
  function change(name, value, own) {
    const by = name === "speed" ? 100 * (value / own - 1) : name === "bubble" ? 100 * (value - own) : value - own;
    const text = Math.abs(by).toFixed(1);
    if (name === "batch" || value === null || !own && name === "speed" || text === "0.0") return null;
    return board.h("small", {}, `${by < 0 ? "−" : "+"}${text}${name === "speed" ? " %" : ""}`);
  }

  // The figures are those of the job that follows: asked for again once it is drawn.
  function choose(row) {
    document.addEventListener("megaboard:drawn", () => open && ask(), { once: true });
    board.wizard.send("apply", { edits: row.edits });
    open?.box.focus();
  }

  document.addEventListener("megaboard:drawn", addButtons);
  document.addEventListener("megaboard:show", close);
})();
