// Where every rank runs, coloured by the group it talks to: TP, PP, DP, EP or CP, one at a time.
(() => {
  const board = (window.Megaboard = window.Megaboard || {});
  const COLOURS = 10;
  let kind = null, drawn = "";

  function draw(element, bundle) {
    const ranks = named(bundle.data.ranks);
    const text = JSON.stringify([ranks, kind]);
    if (text === drawn && element.childElementCount) return;
    const { h, t } = board;
    if (!ranks) {
      drawn = text;
      board.fill(element, h("p", { class: "mb-quiet" }, t("wizard.memory.unread")));
      return;
    }
    if (!ranks.kinds.includes(kind)) kind = ranks.kinds[0];
    drawn = JSON.stringify([ranks, kind]);
    const groups = ranks.groups[kind];
    board.fill(element, 
      h("div", { class: "mb-choice", role: "group", "aria-label": t("wizard.ranks.by") }, ranks.kinds.map((name) =>
        h("button", { type: "button", "aria-pressed": String(name === kind),
          onclick: () => pick(element, bundle, name) }, t(`wizard.ranks.${name}`)))),
      h("p", { class: "mb-quiet" }, sentence(ranks)),
      h("div", { class: "mb-nodes", "aria-hidden": "true", onmouseover: light, onmouseleave: light },
        ranks.nodes.map((name, node) => h("div", { class: "mb-node" },
          h("span", { class: "mb-node-name", title: name }, name),
          h("div", { class: "mb-gpus" }, Array.from({ length: ranks.per_node }, (_, gpu) =>
            cell(ranks, groups, node * ranks.per_node + gpu)))))),
      ranks.left_out > 0 && h("p", { class: "mb-quiet" }, t("wizard.ranks.left_out", { count: ranks.left_out })),
      list(ranks, groups));
  }

  const named = (ranks) => ranks && { ...ranks,
    nodes: ranks.nodes.map((name, node) => name || board.t("wizard.ranks.unnamed", { node })) };

  function cell(ranks, groups, rank) {
    const { h, t } = board;
    const where = ranks.kinds.map((name) => `${t(`wizard.ranks.${name}.short`)}${ranks.groups[name][rank]}`).join(" ");
    return h("span", { class: "mb-rank", "data-group": groups[rank], "data-colour": groups[rank] % COLOURS,
        title: t("wizard.ranks.cell", { rank, groups: where }) },
      h("b", {}, String(rank)), h("small", {}, `${t(`wizard.ranks.${kind}.short`)}${groups[rank]}`));
  }

  // The same for those who do not see the map: the ranks of every group, with the nodes they are on.
  function list(ranks, groups) {
    const { h, t } = board;
    const members = new Map();
    groups.forEach((group, rank) => members.set(group, [...(members.get(group) || []), rank]));
    const nodeOf = (rank) => ranks.nodes[Math.floor(rank / ranks.per_node)];
    const line = ([group, list]) => h("li", {}, t("wizard.ranks.group", {
      group: `${t(`wizard.ranks.${kind}.short`)}${group}`,
      ranks: list.join(", "),
      nodes: [...new Set(list.map(nodeOf))].join(", "),
    }));
    const lines = h("ul", {}, [...members].map(line));
    return h("details", { class: "mb-twin" }, h("summary", {}, t("wizard.ranks.list")), lines);
  }

  function pick(element, bundle, name) {
    kind = name;
    draw(element, bundle);
    element.querySelector('[aria-pressed="true"]')?.focus();
  }

  function light(event) {
    const rank = event.type === "mouseleave" ? null : event.target.closest(".mb-rank");
    for (const other of event.currentTarget.querySelectorAll(".mb-rank"))
      other.classList.toggle("mb-lit", Boolean(rank) && other.dataset.group === rank.dataset.group);
  }

  function sentence({ spans }) {
    const { groups, ranks, nodes } = spans[kind];
    const key = nodes === 1 ? "wizard.ranks.inside" : "wizard.ranks.across";
    return board.t(key, { kind: board.t(`wizard.ranks.${kind}`), groups, ranks, nodes });
  }

  (board.panels = board.panels || {}).ranks = draw;
})();
