// A map of the ranks on the nodes, coloured by group: TP, PP, DP, EP or CP, one kind at a time. The rank under the
// pointer or chosen by arrow keys shows all its groups, and highlights its group of the chosen kind.
import { fill, h } from "../lib/dom.js";
import { t } from "../lib/words.js";

const COLOURS = 10, MANY = 16;
let kind = null, drawn = "", shown = null, at = null, isListed = false;

export function draw(element, payload) {
  const ranks = named(payload.data.ranks);
  const text = JSON.stringify([ranks, kind]);
  if (text === drawn && element.childElementCount) return;
  at = null;
  if (!ranks) {
    drawn = text;
    fill(element, h("p.mb-quiet", {}, t("wizard.memory.unread")));
    return;
  }
  if (!ranks.kinds.includes(kind)) kind = ranks.kinds[0];
  drawn = JSON.stringify([ranks, kind]);
  shown = ranks;
  fill(element,
    h("div.mb-choice", { role: "group", "aria-label": t("wizard.ranks.by") }, ranks.kinds.map((name) =>
      h("button", { type: "button", "aria-pressed": String(name === kind),
        onclick: () => pick(element, payload, name) }, t(`wizard.ranks.${name}`), " ", h("small", {}, reach(ranks, name))))),
    h("p.mb-quiet", {}, sentence(ranks)),
    h("p.mb-rank-says", { "aria-live": "polite" }, t("wizard.ranks.point")),
    h("div", { class: ranks.nodes.length > MANY ? "mb-nodes mb-many" : "mb-nodes", tabindex: "0", role: "group",
        "aria-label": t("wizard.ranks.map"), onmouseover: point, onmouseleave: () => highlight(element, null), onkeydown: move,
        onblur: () => highlight(element, null) },
      ranks.nodes.map((name, node) => h("div.mb-node", { "aria-hidden": "true" },
        // Here is little room: long names would all be cut to the same few letters.
        h("span.mb-node-name", { title: name },
          ranks.nodes.length > MANY ? t("wizard.ranks.unnamed", { node }) : name),
        h("div.mb-gpus", {}, Array.from({ length: ranks.per_node }, (_, gpu) =>
          cell(ranks, node * ranks.per_node + gpu)))))),
    ranks.left_out > 0 && h("p.mb-quiet", {}, t("wizard.ranks.left_out", { count: ranks.left_out })),
    list(ranks));
}

const named = (ranks) => ranks && { ...ranks,
  nodes: ranks.nodes.map((name, node) => name || t("wizard.ranks.unnamed", { node })) };

function cell(ranks, rank) {
  const group = ranks.groups[kind][rank];
  return h("span.mb-rank", { "data-rank": rank, "data-colour": group % COLOURS },
    h("b", {}, String(rank)), h("small", {}, `${t(`wizard.ranks.${kind}.short`)}${group}`));
}

const nodeOf = (ranks, rank) => Math.floor(rank / ranks.per_node);
const nodesOf = (ranks, members) => [...new Set(members.map((rank) => nodeOf(ranks, rank)))];
const membersOf = (ranks, name, group) => ranks.groups[name].flatMap((other, rank) => other === group ? [rank] : []);

function reach({ spans }, name) {
  const { nodes } = spans[name];
  return nodes === 1 ? t("wizard.ranks.reach.inside") : t("wizard.ranks.reach.across", { nodes });
}

function sentence({ spans }) {
  const { groups, ranks, nodes } = spans[kind];
  const key = nodes === 1 ? "wizard.ranks.inside" : "wizard.ranks.across";
  return t(key, { kind: t(`wizard.ranks.${kind}`), groups, ranks, nodes });
}

// Example: 0–3, 8–11. Of many separate ranks it shows the first ones and the last.
function inWords(members) {
  const runs = [];
  for (const rank of members) {
    if (runs.length && runs.at(-1)[1] === rank - 1) runs.at(-1)[1] = rank;
    else runs.push([rank, rank]);
  }
  const words = runs.map(([first, last]) => first === last ? `${first}` : `${first}–${last}`);
  return words.length <= 8 ? words.join(", ") : `${words.slice(0, 4).join(", ")} … ${words.at(-1)}`;
}

function describe(ranks, rank) {
  const groups = ranks.kinds.map((name) => {
    const group = ranks.groups[name][rank], members = membersOf(ranks, name, group), nodes = nodesOf(ranks, members);
    const isPartial = ranks.left_out > 0 && ranks.spans[name].ranks > members.length;
    const where = ranks.spans[name].nodes === 1 ? t("wizard.ranks.reach.inside")
      : t("wizard.ranks.reach.across", { nodes: isPartial ? ranks.spans[name].nodes : nodes.length });
    return t("wizard.ranks.member", { kind: t(`wizard.ranks.${name}.short`), group, where,
      ranks: isPartial ? `${inWords(members)} …` : inWords(members) });
  });
  return t("wizard.ranks.says", { rank, node: ranks.nodes[nodeOf(ranks, rank)], gpu: rank % ranks.per_node,
    groups: groups.join("; ") });
}

function highlight(element, rank) {
  at = rank;
  const group = rank === null ? null : shown.groups[kind][rank];
  for (const other of element.querySelectorAll(".mb-rank")) {
    const number = Number(other.dataset.rank), isIn = group !== null && shown.groups[kind][number] === group;
    other.classList.toggle("mb-lit", isIn);
    other.classList.toggle("mb-dim", group !== null && !isIn);
    other.classList.toggle("mb-here", number === rank);
  }
  element.querySelector(".mb-rank-says").textContent = rank === null ? t("wizard.ranks.point") : describe(shown, rank);
}

function point(event) {
  const hit = event.target.closest(".mb-rank"), rank = hit ? Number(hit.dataset.rank) : null;
  if (rank !== at) highlight(event.currentTarget.closest(".mb-place"), rank);
}

function move(event) {
  const last = shown.groups[kind].length - 1, now = at ?? -1;
  const to = { ArrowRight: now + 1, ArrowLeft: now - 1, ArrowDown: now + shown.per_node, ArrowUp: now - shown.per_node,
    Home: 0, End: last }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  highlight(event.currentTarget.closest(".mb-place"), Math.max(0, Math.min(last, to)));
}

// The map as text for screen readers: the ranks of every group, and their nodes.
function list(ranks) {
  const groups = ranks.groups[kind];
  const lines = () => [...new Set(groups)].map((group) => {
    const members = membersOf(ranks, kind, group);
    return h("li", {}, t("wizard.ranks.group", { group: `${t(`wizard.ranks.${kind}.short`)}${group}`,
      ranks: members.join(", "), nodes: nodesOf(ranks, members).map((node) => ranks.nodes[node]).join(", ") }));
  });
  const details = h("details.mb-twin", {}, h("summary", {}, t("wizard.ranks.list")));
  details.addEventListener("toggle", () => {
    isListed = details.open;
    if (isListed && details.children.length < 2) details.append(h("ul", {}, lines()));
  });
  details.open = isListed;
  return details;
}

function pick(element, payload, name) {
  kind = name;
  draw(element, payload);
  element.querySelector('[aria-pressed="true"]')?.focus();
}
