// Several runs side by side: their curves in the same charts, and the keys in which their jobs differ. The address names
// the runs, so another browser opens the same view.
import { setCommands } from "../lib/commands.js";
import { attribute, fill, h, keyed, text } from "../lib/dom.js";
import { number, whole } from "../lib/format.js";
import { watchPlots } from "../lib/plots.js";
import { moment } from "../lib/time.js";
import { w } from "../lib/words.js";
import { badge, setBadge } from "./badge.js";
import { COLOURS, Overlay } from "./overlay.js";

const BASIC = [{ key: "loss" }, { key: "grad_norm" }, { key: "learning_rate", isSmooth: true }, { key: "tokens_per_s", format: "SI" }, { key: "step_s" }];
// Most points of a curve. A longer one is requested as a whole, and the server thins it to 400.
const MOST = 600;
// Distance from the screen at which a chart is drawn.
const NEAR_PX = "300px";

// `link` is that of monitor.js.
export function SideBySide(runs, link) {
  const settings = { smoothing: 0.8, isLog: false };
  const hidden = new Set();
  const marks = Object.fromEntries(runs.map((run) => [run, { points: {}, metrics: {} }]));
  const charts = new Map();
  let heads = {}, zoom = null, watcher = null;

  const list = h("ul.mbm-side-runs");
  const basic = h("div.mbm-charts"), groups = h("div.mbm-metrics");
  const fields = h("div.mb-card.mbm-scroll.mbm-fields");
  const root = h("div.mbm-side", {}, h("a.mbm-back", { href: "#runs", "data-go": "runs" }, `← ${w("runs")}`),
    h("div.mbm-title", {}, h("h2", { tabindex: "-1" }, w("side.title")), controls()), list,
    h("section.mbm-curves", { "aria-label": w("charts") }, basic, groups), fields);

  const nearness = new IntersectionObserver((changes) => changes.forEach(({ target, isIntersecting }) =>
    charts.get(target.getAttribute("data-chart"))?.setNear(isIntersecting)), { rootMargin: NEAR_PX });
  const shared = { settings, poll: link.poll, zoomed, labels: (run) => heads[run]?.name ?? run, shown: (run) => !hidden.has(run) };
  const chart = (spec, title) => {
    const made = Overlay({ ...spec, title }, runs, shared);
    charts.set(spec.key, made);
    nearness.observe(made.card);
    return made;
  };
  basic.append(...BASIC.map((spec) => chart(spec, w(`chart.${spec.key}`)).card));
  watch();

  function watch() {
    watcher?.close();
    watcher = watchPlots([...charts.values()].map((one) => one.plot), redraw);
  }

  function redraw() {
    charts.forEach((one) => one.draw());
  }

  function controls() {
    const slider = h("input", { type: "range", min: "0", max: "0.99", step: "0.01", value: String(settings.smoothing), oninput: () => {
      settings.smoothing = Number(slider.value);
      redraw();
    } });
    const log = h("input", { type: "checkbox", onchange: () => {
      settings.isLog = log.checked;
      redraw();
    } });
    return h("div.mbm-toolbar", {}, h("label.mbm-check", {}, h("span", {}, w("side.smoothing")), slider),
      h("label.mbm-check", {}, log, h("span", {}, w("side.log"))));
  }

  function take(response) {
    if (response.heads) takeHeads(response.heads);
    if (response.names) takeNames(response.names);
    const changed = new Set();
    for (const [run, points] of Object.entries(response.curves ?? {})) takePoints(run, points, changed);
    for (const [run, values] of Object.entries(response.logged ?? {})) takeValues(run, values, changed);
    for (const [run, detail] of Object.entries(response.details ?? {})) takeDetail(run, detail, changed);
    changed.forEach((one) => one.draw());
    if (response.fields) showFields(response.fields);
  }

  function takeHeads(rows) {
    heads = Object.fromEntries(rows.map((row) => [row.id, row]));
    keyed(list, rows, (row) => row.id, makeRun, updateRun);
  }

  function makeRun(row) {
    const box = h("input", { type: "checkbox", checked: true, onchange: () => {
      if (box.checked) hidden.delete(row.id);
      else hidden.add(row.id);
      redraw();
    } });
    const swatch = h("i.mbm-swatch", { "aria-hidden": "true", style: { background: COLOURS[runs.indexOf(row.id)] } });
    return h("li", {}, h("label", {}, box, swatch, h("span")), h("a"), badge("state", "queued"), h("span.mb-quiet"), h("span.mbm-why"));
  }

  function updateRun(item, row) {
    const [label, link_, state, about, why] = item.children;
    const target = `runs/${row.id}`;
    text(label.lastChild, row.name ?? row.id);
    attribute(link_, "href", `#${encodeURI(target)}`);
    attribute(link_, "data-go", target);
    text(link_, row.id);
    state.hidden = about.hidden = Boolean(row.why);
    setCommands(why, row.why);
    if (row.why) return;
    setBadge(state, "state", row.state);
    const tags = row.labels.tags.length ? ` · ${row.labels.tags.join(", ")}` : "";
    text(about, w("side.about", { engine: row.engine, nodes: whole(row.nodes), step: whole(row.step), total: whole(row.total),
      loss: number(row.loss), created: moment(row.created) }) + tags);
  }

  function takeNames(names) {
    const all = [...new Map(names.map((metric) => [metric.group, metric])).values()];
    keyed(groups, all, (metric) => metric.group, (metric) => h("details.mbm-group", { open: !metric.closed, ontoggle: () => link.poll() },
      h("summary", {}, h("h3"), h("span.mb-quiet")), h("div.mbm-charts")), (group, { group: name, group_title: title }) => {
      const members = names.filter((metric) => metric.group === name);
      text(group.firstChild.firstChild, title);
      text(group.firstChild.lastChild, w(members.length === 1 ? "metrics.one" : "metrics.count", { count: members.length }));
      keyed(group.lastChild, members, (metric) => metric.name, (metric) =>
        chart({ key: metric.name }, metric.unit ? w("metrics.title", { title: metric.title, unit: metric.unit }) : metric.title).card, () => {});
    });
    watch();
    link.poll();
  }

  function takePoints(run, points, changed) {
    const mark = marks[run].points;
    const isMore = points.from !== undefined;
    if (isMore && (points.generation !== mark.generation || points.from !== mark.seq)) return;
    if (points.generation !== mark.generation) BASIC.forEach(({ key }) => charts.get(key).forget(run));
    marks[run].points = { generation: points.generation, seq: points.seq };
    for (const { key } of BASIC) {
      if (isMore && !points.series[key]) continue;
      charts.get(key).take(run, points.series[key] ?? { x: [], y: [] }, isMore);
      changed.add(charts.get(key));
    }
  }

  function takeValues(run, values, changed) {
    for (const [name, { version, last, from, ...points }] of Object.entries(values)) {
      const one = charts.get(name), [hasVersion, hasLast] = marks[run].metrics[name] ?? [];
      const isMore = from !== undefined;
      if (!one || (isMore && (version !== hasVersion || from !== hasLast))) continue;
      if (version !== hasVersion) one.forget(run);
      marks[run].metrics[name] = [version, last];
      one.take(run, points, isMore);
      changed.add(one);
    }
  }

  function takeDetail(run, detail, changed) {
    for (const one of charts.values()) {
      const curve = detail.series[one.spec.key] ?? detail.metrics?.[one.spec.key];
      if (one.takeDetail(run, detail, curve)) changed.add(one);
    }
  }

  function zoomed(range) {
    if (String(range) === String(zoom)) return;
    zoom = range;
    charts.forEach((one) => one.follow(range));
  }

  function showFields(rows) {
    const title = h("h3", {}, w("side.fields"));
    if (!rows.length) {
      fill(fields, title, h("p.mb-quiet", {}, w("side.fields.none")));
      return;
    }
    const columns = runs.map((run, place) => h("th", { scope: "col" }, h("i.mbm-swatch", { style: { background: COLOURS[place] } }), " ", heads[run]?.name ?? run));
    const cell = (value) => h("td", {}, value === null ? "?" : value === "" ? "–" : value);
    fill(fields, title, h("table.mbm-table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, w("side.key")), columns)),
      h("tbody", {}, rows.map((row) => h("tr", {}, h("th", { scope: "row" }, row.label && h("span", {}, row.label), h("code.mb-quiet", {}, row.path)), row.values.map(cell))))));
  }

  // The charts that are on screen request values; those of closed groups do not.
  function query() {
    const open = [...groups.children].filter((group) => group.open).flatMap((group) => [...group.lastChild.children].map((card) => card.dataset.chart));
    const compare = Object.fromEntries(runs.map((run) => {
      const { points, metrics } = marks[run];
      const isLong = BASIC.some(({ key }) => charts.get(key).points(run).x.length > MOST);
      const have = (name) => (charts.get(name).points(run).x.length > MOST ? [] : metrics[name] ?? []);
      return [run, { points: isLong ? {} : points, metrics: Object.fromEntries(open.map((name) => [name, have(name)])) }];
    }));
    return { compare, detail: [...charts.values()].map((one) => one.query()).find(Boolean) };
  }

  return {
    root,
    take,
    query,
    charts: () => charts,
    everySecond() {},
    close() {
      watcher.close();
      nearness.disconnect();
      charts.forEach((one) => one.close());
    },
  };
}
