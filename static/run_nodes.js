// The nodes of a run: a table with a row a node, and nodes x GPUs as a heat map where there are GPUs.
(() => {
  const { attribute, badge, duration, el, mibAsGib, keyed, number, setBadge, text, w } = window.Megaboard.live;
  const COLUMNS = ["rank", "address", "state", "heard", "load", "memory", "gpus", "processes", "exit"];
  const MEASURES = ["utilization", "memory"];
  const GPU_NOISE_MIB = 256;

  function Nodes(now) {
    const head = el("tr", {}, ...COLUMNS.map((name) => el("th", { scope: "col" }, w(`node.${name}`))));
    const body = el("tbody");
    const table = el("table.mbm-table", {}, el("caption.mbm-spoken", {}, w("nodes")), el("thead", {}, head), body);
    const heat = heatMap();
    const root = el("section.mb-card", { "aria-labelledby": "mbm-nodes" },
      el("header", {}, el("h3", { id: "mbm-nodes" }, w("nodes"))), el("div.mbm-scroll", {}, table), heat.root);
    let rows = [];

    function take(nodes) {
      rows = nodes;
      root.hidden = !rows.length;
      keyed(body, rows, (node) => node.rank, makeRow, updateRow);
      heat.take(rows);
      age();
    }

    // Ages grow by the browser's clock between two heartbeats.
    function age() {
      for (const node of rows) {
        const cell = body.querySelector(`[data-key="${node.rank}"]`)?.cells[3];
        if (!cell) continue;
        const over = ["finished", "failed", "stopped"].includes(node.state);
        const seconds = node.heard === null ? null : Math.max(0, Math.round(now() - node.heard));
        text(cell, seconds === null || over ? "–" : w("ago", { time: duration(seconds) }));
        attribute(cell, "data-late", !over && seconds > 15);
      }
    }

    return { root, take, age };
  }

  function makeRow(node) {
    const cells = COLUMNS.map((name) => el(name === "rank" ? "th" : "td"));
    cells[0].scope = "row";
    cells[2].append(badge("node_state", node.state));
    return el("tr", {}, ...cells);
  }

  function updateRow(row, node) {
    const [rank, address, state, , load, memory, gpus, processes, exit] = row.cells;
    text(rank, node.rank);
    text(address, node.address);
    setBadge(state.firstChild, "node_state", node.state);
    text(load, number(node.load, 3));
    text(memory, node.memory[1] ? `${mibAsGib(node.memory[0])} / ${mibAsGib(node.memory[1])} GiB` : "–");
    text(gpus, gpuWords(node));
    text(processes, processWords(node));
    attribute(processes, "data-tone", node.left === null ? null : node.left || holdsMemory(node) ? "bad" : "good");
    text(exit, exitWords(node.exit));
    attribute(exit, "data-tone", node.exit && node.exit.reason === "failed" ? "bad" : null);
  }

  function gpuWords(node) {
    if (node.heard === null) return "–";
    if (!node.gpus.length) return w("cpu_node");
    const busy = node.gpus.map((gpu) => gpu[1]).filter((value) => value !== null);
    const mean = busy.length ? Math.round(busy.reduce((sum, value) => sum + value, 0) / busy.length) : "–";
    return w("gpus_busy", { count: node.gpus.length, percent: mean });
  }

  function holdsMemory(node) {
    return node.gpu_mib !== null && node.gpu_mib > GPU_NOISE_MIB;
  }

  function processWords(node) {
    if (node.left !== null) {
      const left = node.left === 0 ? `✓ ${w("left_none")}` : `✕ ${w("left", { count: node.left })}`;
      if (node.gpu_mib === null) return left;
      const memory = holdsMemory(node) ? `✕ ${w("gpu_held", { gib: mibAsGib(node.gpu_mib) })}` : `✓ ${w("gpu_back")}`;
      return `${left} · ${memory}`;
    }
    return node.members ? String(node.members) : "–";
  }

  function exitWords(exit) {
    if (!exit) return "–";
    const code = exit.signal ? w("signal", { signal: exit.signal }) : exit.code ?? "–";
    return `${code} · ${w(`reason.${exit.reason}`)}`;
  }

  function heatMap() {
    let measure = MEASURES[0];
    let rows = [];
    const body = el("tbody");
    const head = el("tr");
    const buttons = MEASURES.map((name) => el("button.mbm-chip", { type: "button", "data-name": name, onclick: () => {
      measure = name;
      draw();
    } }, w(`heat.${name}`)));
    const root = el("div.mbm-heat", { hidden: true },
      el("header", {}, el("h4", {}, w("heat")), el("span.mb-quiet", {}, w("heat.when")), el("div", { role: "group", "aria-label": w("heat.show") }, ...buttons)),
      el("div.mbm-scroll", {}, el("table", {}, el("thead", {}, head), body)));

    function draw() {
      buttons.forEach((button) => attribute(button, "aria-pressed", button.dataset.name === measure));
      const widest = Math.max(...rows.map((node) => node.gpus.length));
      const titles = ["", ...Array.from({ length: widest }, (_, index) => w("gpu", { index }))];
      keyed(head, titles, (title) => title, () => el("th", { scope: "col" }), text);
      keyed(body, rows, (node) => node.rank, () => el("tr", {}, el("th", { scope: "row" })), (row, node) =>
        heatRow(row, node, measure));
    }

    function take(nodes) {
      rows = nodes.filter((node) => node.gpus.length);
      root.hidden = !rows.length;
      if (rows.length) draw();
    }

    return { root, take };
  }

  function heatRow(row, node, measure) {
    text(row.cells[0], `${node.rank} · ${node.address}`);
    while (row.cells.length <= node.gpus.length) row.append(el("td"));
    node.gpus.forEach((gpu, place) => {
      const [index, busy, used, total, power, degrees] = gpu;
      const share = measure === "memory" ? (total ? used / total : null) : busy === null ? null : busy / 100;
      const cell = row.cells[place + 1];
      text(cell, share === null ? "–" : `${Math.round(100 * share)}`);
      cell.style.setProperty("--share", share ?? 0);
      attribute(cell, "data-strong", share > 0.55);
      attribute(cell, "title", w("gpu_told", {
        node: node.address, index, percent: busy ?? "–", used: mibAsGib(used), total: mibAsGib(total), power: power ?? "–",
        degrees: degrees ?? "–",
      }));
    });
  }

  window.Megaboard = Object.assign(window.Megaboard || {}, { Nodes });
})();
