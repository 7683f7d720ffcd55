// The nodes of a run: a table with a row per node, and the heat map of their GPUs (heat.js). Of many nodes the table
// shows those that need attention, and all of them on demand.
import { attribute, h, keyed, text } from "../lib/dom.js";
import { mibAsGib, number } from "../lib/format.js";
import { duration } from "../lib/time.js";
import { w } from "../lib/words.js";
import { badge, setBadge } from "./badge.js";
import { Heat, MANY_NODES } from "./heat.js";

const COLUMNS = ["rank", "address", "state", "heard", "load", "memory", "gpus", "processes", "exit"];
const GPU_NOISE_MIB = 256;
const LOW_DISK_MIB = 10240;
const LATE_S = 15;
const OVER = ["finished", "failed", "stopped"];
const BAD = ["unreachable", "unseen", "lost", "failed"];

export function Nodes(now) {
  const head = h("tr", {}, ...COLUMNS.map((name) => h("th", { scope: "col" }, w(`node.${name}`))));
  const body = h("tbody");
  const table = h("table.mbm-table", {}, h("caption.mbm-spoken", {}, w("nodes")), h("thead", {}, head), body);
  const heat = Heat();
  const scroll = h("div.mbm-scroll", {}, table);
  const states = h("span.mbm-states");
  const oldest = h("span.mb-quiet");
  const all = h("button.mbm-chip", { type: "button", onclick: () => {
    isWhole = !isWhole;
    choose();
  } });
  const root = h("section.mb-card.mbm-nodes", { "aria-labelledby": "mbm-nodes" },
    h("header", {}, h("h3", { id: "mbm-nodes" }, w("nodes")), states, oldest, all), scroll, heat.root);
  let rows = [];
  let isWhole = false;

  function take(nodes) {
    rows = nodes;
    root.hidden = !rows.length;
    keyed(body, rows, (node) => node.rank, makeRow, updateRow);
    heat.take(rows);
    sum();
    age();
  }

  // Shows the number of nodes in each state, because the table does not show all nodes.
  function sum() {
    const isMany = heat.isDense();
    for (const part of [states, oldest, all]) part.hidden = !isMany;
    const counts = [...countStates(rows)].sort(([, first], [, second]) => second - first);
    keyed(states, isMany ? counts : [], ([state]) => state, ([state]) => badge("node_state", state), (node, [state, count]) => {
      setBadge(node, "node_state", state);
      text(node.lastChild, w("nodes.in_state", { state: w(`node_state.${state}`), count }));
    });
  }

  const ageOf = (node) => node.heard === null || OVER.includes(node.state) ? null : Math.max(0, Math.round(now() - node.heard));

  // Between two heartbeats, ages grow by the browser's clock.
  function age() {
    rows.forEach((node, place) => {
      const cell = body.rows[place].cells[3], seconds = ageOf(node);
      text(cell, seconds === null ? "–" : w("ago", { time: duration(seconds) }));
      attribute(cell, "data-late", seconds > LATE_S);
    });
    const ages = rows.map(ageOf).filter((seconds) => seconds !== null);
    text(oldest, ages.length ? w("nodes.oldest", { time: duration(Math.max(...ages)) }) : "");
    attribute(oldest, "data-late", Math.max(...ages) > LATE_S);
    choose();
  }

  function choose() {
    const isMany = heat.isDense();
    const counts = countStates(rows);
    // If no node has sent a heartbeat, the server is at fault, not the nodes.
    const late = rows.filter((node) => ageOf(node) > LATE_S || isUnheard(node, rows));
    const lateOnes = new Set(late.length <= MANY_NODES ? late : []);
    rows.forEach((node, place) => {
      const needsLook = lateOnes.has(node) || isOdd(node, counts);
      body.rows[place].hidden = isMany && !isWhole && !needsLook;
      heat.mark(node.rank, needsLook);
    });
    scroll.hidden = [...body.rows].every((row) => row.hidden);
    text(all, w(isWhole ? "nodes.fewer" : "nodes.all", { count: rows.length }));
    attribute(all, "aria-expanded", String(isWhole));
  }

  return { root, take, age };
}

function countStates(nodes) {
  const counts = new Map();
  for (const node of nodes) counts.set(node.state, (counts.get(node.state) ?? 0) + 1);
  return counts;
}

// Returns whether the node runs and has sent no heartbeat, while other nodes have.
function isUnheard(node, rows) {
  return node.heard === null && node.state === "running" && rows.some((other) => other.heard !== null);
}

// Returns whether something is wrong with the node, or whether it is one of few nodes in its state.
function isOdd(node, counts) {
  const exits = !node.exit || ["finished", "stopped"].includes(node.exit.reason);
  if (BAD.includes(node.state) || node.stuck.length || node.left || holdsMemory(node) || isDiskLow(node) || !exits) return true;
  const alike = counts.get(node.state);
  return alike <= MANY_NODES && alike < Math.max(...counts.values());
}

function makeRow(node) {
  const cells = COLUMNS.map((name) => h(name === "rank" ? "th" : "td"));
  cells[0].scope = "row";
  cells[2].append(badge("node_state", node.state), h("small.mbm-stuck"));
  return h("tr", {}, ...cells);
}

function updateRow(row, node) {
  const [rank, address, state, , load, memory, gpus, processes, exit] = row.cells;
  text(rank, node.rank);
  text(address, node.address);
  setBadge(state.firstChild, "node_state", node.state);
  text(state.lastChild, node.stuck.join(", "));
  text(load, number(node.load, 3));
  const disk = isDiskLow(node) ? ` · ${w("disk_low", { gib: mibAsGib(node.disk_free) })}` : "";
  text(memory, node.memory[1] ? `${mibAsGib(node.memory[0])} / ${mibAsGib(node.memory[1])} GiB${disk}` : "–");
  attribute(memory, "data-tone", disk ? "bad" : null);
  text(gpus, gpuWords(node));
  text(processes, processWords(node));
  attribute(processes, "data-tone", node.left === null ? null : node.left || holdsMemory(node) ? "bad" : "good");
  text(exit, exitWords(node.exit));
  attribute(exit, "data-tone", node.exit && !["finished", "stopped"].includes(node.exit.reason) ? "bad" : null);
}

function gpuWords(node) {
  if (node.heard === null) return "–";
  if (!node.gpus.length) return w("cpu_node");
  const busy = node.gpus.map((gpu) => gpu[1]).filter((value) => value !== null);
  const mean = busy.length ? Math.round(busy.reduce((sum, value) => sum + value, 0) / busy.length) : "–";
  return w("gpus_busy", { count: node.gpus.length, percent: mean });
}

// This is the disk of the run's folder, where the node writes logs and heartbeats.
function isDiskLow(node) {
  return node.disk_free !== null && node.disk_free < LOW_DISK_MIB && !OVER.includes(node.state);
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
