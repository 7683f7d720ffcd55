// Elements made one by one, never from strings: what a node or a model sends is only ever text. Numbers and words.
(() => {
  const words = {};

  // h("p", {class: "x", title: "y", onclick: f}, "text", child): false, null and undefined are left out.
  function h(tag, props, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(props || {})) {
      if (value === false || value === null || value === undefined) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (name === "style") Object.entries(value).forEach(([key, item]) => node.style.setProperty(key, item));
      else node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...present(children));
    return node;
  }

  const isThere = (child) => child !== false && child !== null && child !== undefined;
  const present = (children) => children.flat(3).filter(isThere);
  const fill = (element, ...children) => element.replaceChildren(...present(children));

  function t(key, values) {
    const text = words[key];
    if (text === undefined) return key;
    return text.replace(/\{\{|\}\}|\{(\w+)\}/g, (all, name) => name ? values?.[name] ?? all : all[0]);
  }

  const gib = (value) => value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(1);
  const rounded = (value, digits = 3) => Number(value.toPrecision(digits)).toLocaleString("en");
  const hourCount = (value) => value < 0.1 ? rounded(value, 1) : value.toFixed(value < 1 ? 2 : value < 10 ? 1 : 0);
  const percent = (value) => `${value ? (100 * value).toFixed(1) : 0}%`;

  function count(value) {
    for (const [size, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"]]) {
      const digits = value >= 100 * size ? 0 : value >= 10 * size ? 1 : 2;
      if (value >= size) return `${(value / size).toFixed(digits)} ${letter}`;
    }
    return String(value);
  }

  // A cell that is an element stands as it is; the first cell of a row names the row.
  function table(classes, head, rows, caption) {
    const heading = (cell) => cell instanceof Element ? cell : h("th", { scope: "col" }, cell);
    const cellOf = (cell, index) => cell instanceof HTMLTableCellElement ? cell
      : index ? h("td", {}, cell) : h("th", { scope: "row" }, cell);
    return h("div", { class: "mb-scroll" }, h("table", { class: classes }, caption && h("caption", {}, caption),
      h("thead", {}, h("tr", {}, head.map(heading))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cellOf))))));
  }

  // What is needed against what there is, and the verdict in words: it fits, or what it is too much for.
  function meter(need_gib, most_gib, verdict, isOver) {
    return h("div", { class: ["mb-meter", isOver && "mb-over", verdict === "wizard.near" && "mb-near"].filter(Boolean).join(" ") },
      h("span", { class: "mb-meter-bar", "aria-hidden": "true" },
        h("i", { style: { width: `${Math.min(100, 100 * need_gib / most_gib)}%` } })),
      h("span", { class: "mb-meter-text" }, `${gib(need_gib)} GiB`),
      h("span", { class: "mb-meter-verdict" }, t(verdict)));
  }

  function copyButton(text, label) {
    const button = h("button", { type: "button", class: "mb-tool" }, label ?? t("wizard.copy"));
    button.addEventListener("click", async () => {
      const done = await copy(typeof text === "function" ? text() : text);
      button.textContent = t(done ? "wizard.copied" : "wizard.copy_failed");
      setTimeout(() => { button.textContent = label ?? t("wizard.copy"); }, 1600);
    });
    return button;
  }

  // The clipboard's own interface exists on https and localhost only; a server behind plain http needs the old way.
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = h("textarea", { style: { position: "fixed", opacity: 0 } });
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  }

  const ours = { h, fill, table, t, words, gib, rounded, hourCount, percent, count, meter, copyButton };
  window.Megaboard = Object.assign(window.Megaboard || {}, ours);
})();
