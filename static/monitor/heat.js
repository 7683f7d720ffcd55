// A heat map of nodes x GPUs. Few nodes are one table; many nodes are tables of eight nodes side by side.
import { attribute, h, keyed, text } from "../lib/dom.js";
import { mibAsGib } from "../lib/format.js";
import { w } from "../lib/words.js";

const MEASURES = ["utilization", "memory"];
export const MANY_NODES = 8;
const MOST_LETTERS = 15;
// From this share on, white text is easier to read than black text. Each has a contrast of 4.5 to 1 or more on its
// colours.
const STRONG = 0.8;

export function Heat() {
  let measure = MEASURES[0];
  let rows = [];
  let widest = 0;
  let shorten = null;
  const buttons = MEASURES.map((name) => h("button.mbm-chip", { type: "button", "data-name": name, onclick: () => {
    measure = name;
    draw();
  } }, w(`heat.${name}`)));
  const maps = h("div.mbm-maps");
  const root = h("div.mbm-heat", { hidden: true },
    h("header", {}, h("h4", {}, w("heat")), h("span.mb-quiet", {}, w("heat.when")),
      h("div", { role: "group", "aria-label": w("heat.show") }, ...buttons)),
    h("div.mbm-scroll", {}, maps));
  const isDense = () => rows.length > MANY_NODES;

  function take(nodes) {
    rows = nodes;
    shorten = shortener(rows.map((node) => node.address));
    widest = Math.max(0, ...rows.map((node) => node.gpus.length));
    root.hidden = !widest;
    if (widest) draw();
  }

  function draw() {
    buttons.forEach((button) => attribute(button, "aria-pressed", button.dataset.name === measure));
    attribute(root, "data-dense", isDense());
    const parts = Array.from({ length: Math.ceil(rows.length / MANY_NODES) }, (_, part) =>
      rows.slice(part * MANY_NODES, (part + 1) * MANY_NODES));
    maps.style.setProperty("--narrow", Math.min(2, parts.length));
    maps.style.setProperty("--broad", Math.min(4, parts.length));
    keyed(maps, parts, (part) => part[0].rank, makeMap, updateMap);
  }

  function makeMap() {
    return h("table", {}, h("thead", {}, h("tr")), h("tbody"));
  }

  function updateMap(map, part) {
    const indices = Array.from({ length: widest + 1 }, (_, index) => index - 1);
    keyed(map.tHead.rows[0], indices, (index) => index, () => h("th", { scope: "col" }), (cell, index) => {
      text(cell, index < 0 ? "" : isDense() ? index : w("gpu", { index }));
      attribute(cell, "aria-label", index < 0 ? null : w("gpu", { index }));
    });
    keyed(map.tBodies[0], part, (node) => node.rank, () => h("tr", {}, h("th", { scope: "row" })), updateRow);
  }

  function updateRow(row, node) {
    const name = `${node.rank} · ${node.address}`;
    text(row.cells[0], isDense() ? `${node.rank} · ${shorten(node.address)}` : name);
    attribute(row.cells[0], "title", `${name} · ${w(`node_state.${node.state}`)}`);
    attribute(row.cells[0], "aria-label", isDense() && name);
    while (row.cells.length <= widest) row.append(h("td"));
    for (let place = 0; place < widest; place += 1) updateCell(row.cells[place + 1], node, node.gpus[place]);
  }

  function updateCell(cell, node, gpu) {
    const [index, busy, used, total, power, degrees] = gpu ?? [];
    const value = measure === "memory" ? used / total : busy / 100;
    const share = gpu && (measure === "memory" ? total : busy !== null) ? value : null;
    text(cell, share === null ? "–" : `${Math.round(100 * share)}`);
    cell.style.setProperty("--share", share ?? 0);
    attribute(cell, "data-strong", share >= STRONG);
    attribute(cell, "title", gpu && w("gpu_told", {
      node: node.address, index, percent: busy ?? "–", used: mibAsGib(used), total: mibAsGib(total), power: power ?? "–",
      degrees: degrees ?? "–",
    }));
  }

  return {
    root,
    take,
    isDense,
    // Marks a node that needs attention. nodes.js decides which ones do.
    mark(rank, needsLook) {
      const row = maps.querySelector(`tr[data-key="${rank}"]`);
      if (row) attribute(row, "data-look", needsLook && isDense());
    },
  };
}

// Shortens long names: removes the common beginning, up to a sign between words, and the common domain.
function shortener(names) {
  if (names.every((name) => name.length <= MOST_LETTERS)) return (name) => name;
  const [first] = names;
  const isShared = (part, has) => names.every((name) => name[has](part));
  let begin = first.length - 1;
  while (begin > 0 && !(/\W/.test(first[begin - 1]) && isShared(first.slice(0, begin), "startsWith"))) begin -= 1;
  const dots = [...first].map((letter, at) => (letter === "." ? at : 0)).filter((at) => at > begin);
  const end = dots.find((at) => isShared(first.slice(at), "endsWith"));
  const domain = end === undefined ? 0 : first.length - end;
  return (name) => `${begin ? "…" : ""}${name.slice(begin, name.length - domain)}`;
}
