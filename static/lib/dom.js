// Elements of the page. They are never made from strings of HTML, so that text from a node stays text.

// h("p.mb-quiet", { title, onclick }, "text", child) makes an element: the tag and its classes, then attributes and
// listeners, then children. It leaves out values that are false, null or undefined.
export function h(kind, props, ...children) {
  const [tag, ...classes] = kind.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [name, value] of Object.entries(props || {})) {
    if (!isThere(value)) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.entries(value).forEach(([key, item]) => node.style.setProperty(key, item));
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...present(children));
  return node;
}

const isThere = (child) => child !== false && child !== null && child !== undefined;
const present = (children) => children.flat(3).filter(isThere);

// Replaces the children of an element.
export const fill = (element, ...children) => element.replaceChildren(...present(children));

// Draws an element anew. The child that replaces the focused one gets the focus, so that the next key acts there.
export function keepFocus(element, redraw) {
  const focused = /** @type {HTMLElement} */ (document.activeElement), isInside = element.contains(focused);
  redraw();
  if (!isInside || focused.isConnected || element.contains(document.activeElement)) return;
  const nameOf = ({ dataset, ariaLabel, textContent }) => dataset.key ?? dataset.act ?? `${ariaLabel} ${textContent}`;
  const isSame = (child) => nameOf(child) === nameOf(focused);
  [...element.querySelectorAll(focused.tagName)].find(isSame)?.focus({ preventScroll: true });
}

// Writes the text if it differs. So a poll without changes keeps the layout and the selection.
export function text(node, value) {
  const words = String(value ?? "");
  if (node.textContent !== words) node.textContent = words;
}

export function attribute(node, name, value) {
  if (!isThere(value)) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

// Makes the children of `parent` match `rows` by key. It updates existing children in place, so they keep the focus.
export function keyed(parent, rows, key, make, update) {
  const existing = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  rows.forEach((row, index) => {
    const name = String(key(row));
    let node = existing.get(name);
    existing.delete(name);
    if (!node) {
      node = make(row);
      node.dataset.key = name;
    }
    if (parent.children[index] !== node) parent.insertBefore(node, parent.children[index] ?? null);
    update(node, row);
  });
  for (const child of existing.values()) child.remove();
}

// A table in a box that scrolls. A cell that is already a table cell stays as it is. The first cell of a row is its
// header.
export function table(classes, head, rows, caption) {
  const heading = (cell) => cell instanceof Element ? cell : h("th", { scope: "col" }, cell);
  const cellOf = (cell, index) => cell instanceof HTMLTableCellElement ? cell
    : index ? h("td", {}, cell) : h("th", { scope: "row" }, cell);
  return h("div.mb-scroll", {}, h("table", { class: classes }, caption && h("caption", {}, caption),
    h("thead", {}, h("tr", {}, head.map(heading))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cellOf))))));
}
