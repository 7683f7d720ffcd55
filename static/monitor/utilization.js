// Utilization of the nodes over the time of a run: a line per node, and the GPU with the lowest utilization or the highest memory of all nodes. The
// server keeps a few time intervals per node. The page requests them now and then, and gets those that changed.
import { attribute, h, keyed, text } from "../lib/dom.js";
import { number } from "../lib/format.js";
import { axis, config, frame, palette, watchPlots } from "../lib/plots.js";
import { moment } from "../lib/time.js";
import { w } from "../lib/words.js";

const EVERY_MS = 10000;
const FEW_NODES = 4, MANY_NODES = 8;
// The shortest span of the time axis. With a single heartbeat, every tick would show the same second.
const LEAST_S = 60;
const PERCENT = ["utilization", "memory", "host_memory"];
const OF_GPUS = ["utilization", "memory", "power"];
const COLOURS = ["#2563eb", "#d97706", "#059669", "#7c3aed", "#0891b2", "#be185d", "#65a30d", "#64748b"];
const [START, MEAN, LOW, HIGH, WORST, GPU] = [0, 1, 2, 3, 4, 5];

// `poll` makes the monitor poll the server now.
export function Utilization(run, poll) {
  const chips = h("div.mbm-chips", { role: "group", "aria-label": w("heat.show") });
  const now = h("span.mbm-now"), worst = h("span.mb-quiet"), note = h("p.mb-quiet.mbm-usage-note");
  const legend = h("div.mbm-usage-legend.mb-quiet", { "aria-hidden": "true" });
  const plot = h("div.mbm-plot", { role: "figure" });
  const names = ["node", "last", "lowest", "highest", "worst"].map((name) => h("th", { scope: "col" }, w(`usage.${name}`)));
  const twin = h("table.mbm-spoken", {}, h("caption"), h("thead", {}, h("tr", {}, ...names)), h("tbody"));
  const root = h("section.mb-card.mbm-usage", { "aria-labelledby": "mbm-usage", hidden: true },
    h("header", {}, h("h3", { id: "mbm-usage" }, w("usage")), now, worst, chips), note, legend, plot, twin);
  const watcher = watchPlots([plot], draw);
  const addresses = new Map();
  let nodes = new Map(), measure = null, measures = [], requestedAt = 0;

  function choose(name) {
    [measure, nodes, requestedAt] = [name, new Map(), 0];
    poll();
  }

  function take(part) {
    if (!part || (measure && part.measure !== measure)) return;
    [measure, measures] = [part.measure, part.measures];
    for (const node of part.nodes) {
      const unchanged = (nodes.get(node.rank)?.rows ?? []).filter((row) => row[START] < (node.from ?? 0));
      nodes.set(node.rank, { have: node.have, rows: [...unchanged, ...node.rows] });
    }
    nodes = new Map([...nodes].sort(([first], [second]) => first - second));
    root.hidden = false;
    draw();
  }

  function draw() {
    if (!nodes.size) return;
    const lines = [...nodes].map(([rank, { have, rows }]) => ({ rank, width: have[0], rows, name: nameOf(rank) }));
    const all = together(lines, measure), colours = palette(plot);
    window.Plotly.react(plot, traces(lines, all, colours, measure), layout(colours, measure, lines.length, run, all), config());
    updateFigures(lines, all.at(-1));
  }

  function updateFigures(lines, newest) {
    keyed(chips, measures, (name) => name, (name) => h("button.mbm-chip", { type: "button", onclick: () => choose(name) },
      w(`usage.${name}`)), (chip, name) => attribute(chip, "aria-pressed", name === measure));
    const isOfGpus = OF_GPUS.includes(measure), shown = (value) => w(`usage.value.${measure}`, { value: number(value, 3) });
    const figures = lines.map(({ rank, name, rows }) => ({ rank, name, last: rows.at(-1)?.[MEAN], low: least(rows, LOW),
      high: most(rows, HIGH), worst: rows.at(-1)?.[WORST], gpu: rows.at(-1)?.[GPU] }));
    text(now, newest ? w("usage.mean", { value: shown(newest.mean) }) : "");
    text(worst, newest?.worst ? w(`usage.now.${measure}`, { ...newest.worst, value: shown(newest.worst.value) }) : "");
    const words = [w(isOfGpus ? `usage.note.${measure}` : "usage.note.host"), w("usage.note.band")];
    text(note, (measures.some((name) => OF_GPUS.includes(name)) ? words : [w("usage.note.no_gpu"), words[1]]).join(""));
    keyed(legend, lines.length <= MANY_NODES ? lines : [], (line) => line.rank, () => h("span", {}, h("i"), h("span")),
      (item, line) => {
        item.firstChild.style.borderColor = colourOf(line.rank);
        text(item.lastChild, line.name);
      });
    text(twin.caption, w(`usage.${measure}`));
    keyed(twin.tBodies[0], figures, (line) => line.rank, () => h("tr", {}, h("th", { scope: "row" }), ...names.slice(1).map(() => h("td"))),
      (row, line) => [line.name, shown(line.last), shown(line.low), shown(line.high),
        line.gpu === undefined ? "–" : `GPU ${line.gpu}: ${shown(line.worst)}`].forEach((words, i) => text(row.cells[i], words)));
    attribute(plot, "aria-label", w("chart.spoken", { name: w(`usage.${measure}`), last: now.textContent,
      low: shown(least(figures, "low")), high: shown(most(figures, "high")), trend: worst.textContent || "–" }));
  }

  const nameOf = (rank) => `${rank} · ${addresses.get(rank) ?? ""}`;

  return {
    root,
    take,
    takeNodes: (list) => list.forEach((node) => addresses.set(node.rank, node.address)),
    query() {
      if (Date.now() - requestedAt < EVERY_MS) return undefined;
      requestedAt = Date.now();
      return { measure, have: Object.fromEntries([...nodes].map(([rank, node]) => [rank, node.have])) };
    },
    rows: (rank) => nodes.get(rank)?.rows,
    close() {
      watcher.close();
      window.Plotly.purge(plot);
    },
  };
}

// Merges all nodes into intervals of the widest interval: the lowest and the highest value, and the worst GPU of each
// interval.
function together(lines, measure) {
  const isWorse = measure === "memory" ? (value, other) => value > other : (value, other) => value < other;
  const width = Math.max(...lines.map((line) => line.width)), merged = new Map();
  for (const { rank, rows } of lines) {
    for (const row of rows) {
      const start = Math.floor(row[START] / width) * width;
      const interval = merged.get(start) ?? { start, width, low: Infinity, high: -Infinity, sum: 0, count: 0, worst: null };
      interval.low = Math.min(interval.low, row[LOW]);
      interval.high = Math.max(interval.high, row[HIGH]);
      interval.sum += row[MEAN];
      interval.count += 1;
      if (row[WORST] !== undefined && (!interval.worst || isWorse(row[WORST], interval.worst.value))) interval.worst = { value: row[WORST], rank, gpu: row[GPU] };
      merged.set(start, interval);
    }
  }
  return [...merged.values()].sort((a, b) => a.start - b.start).map((interval) => ({ ...interval, mean: interval.sum / interval.count }));
}

function traces(lines, all, colours, measure) {
  const lagging = all.filter((interval) => interval.worst);
  const drawn = lines.map((line) => ({
    ...xy(line.rows, line.width, (row) => row[START], (row) => row[MEAN]), mode: line.rows.length > 1 ? "lines" : "markers", name: line.name,
    line: { color: lines.length > MANY_NODES ? colours.line : colourOf(line.rank), width: lines.length > MANY_NODES ? 1 : 1.75 },
    opacity: lines.length > MANY_NODES ? 0.55 : 1, hovertemplate: `${line.name}: %{y:.3~g}<extra></extra>`,
  }));
  const where = lagging.map((interval) => w("usage.gpu", interval.worst));
  const line = xy(lagging, lagging[0]?.width, (interval) => interval.start, (interval) => interval.worst.value, where);
  return [band(all, colours), ...drawn, ...(lagging.length ? [{ ...line, mode: "lines", name: w(`usage.worst.${measure}`),
    line: { color: colours.bad, width: 1.5, dash: "dot" }, hovertemplate: `${w(`usage.worst.${measure}`)}: %{y:.3~g} · %{text}<extra></extra>` }] : [])];
}

// One polygon for each stretch of time without a gap.
function band(all, colours) {
  const x = [], y = [];
  for (const part of unbroken(all)) {
    const back = [...part].reverse();
    x.push(...part.map((interval) => stamp(interval.start)), ...back.map((interval) => stamp(interval.start)), null);
    y.push(...part.map((interval) => interval.high), ...back.map((interval) => interval.low), null);
  }
  return { x, y, mode: "lines", fill: "toself", fillcolor: colours.raw, opacity: 0.25, line: { width: 0 }, hoverinfo: "skip" };
}

function unbroken(all) {
  const parts = [];
  all.forEach((interval, place) => {
    if (!place || interval.start - all[place - 1].start > 3 * interval.width) parts.push([]);
    parts.at(-1).push(interval);
  });
  return parts;
}

// A line has a gap where no heartbeat came, and between two attempts.
function xy(rows, width, at, value, texts) {
  const x = [], y = [], words = [];
  rows.forEach((row, place) => {
    if (place && at(row) - at(rows[place - 1]) > 3 * width) {
      x.push(stamp(at(row) - width));
      y.push(null);
      words.push("");
    }
    x.push(stamp(at(row)));
    y.push(value(row));
    words.push(texts?.[place] ?? "");
  });
  return { x, y, text: words };
}

function layout(colours, measure, count, run, all) {
  const shared = axis(colours, true);
  const stops = [[[null, 59999], "%H:%M:%S"], [[60000, 86399999], "%H:%M\n%m-%d"], [[86400000, null], "%m-%d"]];
  const [first, last] = [all[0].start, all.at(-1).start];
  const span = last - first < LEAST_S ? { range: [stamp(first), stamp(first + LEAST_S)] } : { autorange: true };
  return {
    ...frame(colours),
    hovermode: count > FEW_NODES ? "closest" : "x unified",
    uirevision: `${run} ${measure}`,
    xaxis: { ...shared, ...span, type: "date", nticks: 12, hoverformat: "%Y-%m-%d %H:%M:%S",
      tickformatstops: stops.map(([dtickrange, value]) => ({ dtickrange, value })) },
    yaxis: { ...shared, nticks: 6, rangemode: "tozero", ...(PERCENT.includes(measure) ? { range: [0, 102] } : {}),
      title: { text: w(`usage.unit.${measure}`), font: { size: 11, color: colours.quiet }, standoff: 4 } },
  };
}

// Plotly shows times exactly as they are written.
const stamp = (epoch) => moment(epoch);
const colourOf = (rank) => COLOURS[rank % COLOURS.length];
const least = (rows, key) => rows.reduce((low, row) => Math.min(low, row[key]), Infinity);
const most = (rows, key) => rows.reduce((high, row) => Math.max(high, row[key]), -Infinity);
