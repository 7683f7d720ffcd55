// Charts of the numbers that a run logs under names of its own, by group. A closed group requests no values.
import { h, keyed, text } from "../lib/dom.js";
import { watchPlots } from "../lib/plots.js";
import { w } from "../lib/words.js";
import { Chart } from "./chart.js";

// Most points of a curve. A curve that has grown longer is requested as a whole, and the server thins it.
const MOST = 1500;

export function Metrics(view, poll) {
  const root = h("div.mbm-metrics");
  const charts = new Map();
  let listed = [], run = "", watcher = null;

  function takeNames(ofRun, names) {
    run = ofRun;
    listed = names;
    for (const metric of names) if (!charts.has(metric.name)) charts.set(metric.name, entry(metric));
    const groups = [...new Map(names.map((metric) => [metric.group, metric])).values()];
    keyed(root, groups, (metric) => metric.group, makeGroup, updateGroup);
    watcher?.close();
    watcher = watchPlots([...charts.values()].map(({ chart }) => chart.plot), () => shown().forEach(({ chart }) => chart.redraw()));
    poll();
  }

  function entry(metric) {
    const title = metric.unit ? w("metrics.title", { title: metric.title, unit: metric.unit }) : metric.title;
    const spec = { key: metric.name, name: metric.name, title, label: metric.title, series: [metric.name] };
    return { chart: Chart(spec, view, poll), version: -1, last: -1 };
  }

  function makeGroup(metric) {
    const cards = h("div.mbm-charts");
    const group = h("details.mbm-group", { open: !metric.closed, ontoggle: () => poll() },
      h("summary", {}, h("h3"), h("span.mb-quiet")), cards);
    return group;
  }

  function updateGroup(group, { group: name, group_title: title }) {
    const members = listed.filter((metric) => metric.group === name);
    const [heading, count] = group.firstChild.children;
    text(heading, title);
    text(count, w(members.length === 1 ? "metrics.one" : "metrics.count", { count: members.length }));
    keyed(group.lastChild, members, (metric) => metric.name, (metric) => charts.get(metric.name).chart.card, () => {});
  }

  // Returns the entries of open groups.
  const shown = () => [...root.children].filter((group) => group.open).flatMap((group) =>
    [...group.lastChild.children].map((card) => charts.get(card.dataset.chart)));

  function takeValues(values) {
    for (const [name, { version, last, from, ...points }] of Object.entries(values)) {
      const one = charts.get(name);
      if (!one) continue;
      const follows = from !== undefined;
      if (follows && (version !== one.version || from !== one.last)) continue;
      if (version !== one.version) one.chart.detail.forget();
      Object.assign(one, { version, last });
      if (follows) one.chart.extend({ [name]: points });
      else one.chart.replace(run, { [name]: points });
    }
  }

  function takeDetail(details) {
    for (const [name, points] of Object.entries(details.metrics ?? {})) {
      const one = charts.get(name);
      if (one?.chart.detail.take({ ...details, series: { [name]: points } })) one.chart.redraw();
    }
  }

  return {
    root,
    takeNames,
    takeValues,
    takeDetail,
    query: () => Object.fromEntries(shown().map(({ chart, version, last }) => {
      const name = chart.spec.key, isLong = chart.data()[name].x.length > MOST;
      return [name, isLong ? [] : [version, last].map((value) => Math.max(0, value))];
    })),
    detailQuery: () => shown().map(({ chart }) => chart.detail.query()).find(Boolean),
    data: (name) => charts.get(name)?.chart.data()[name],
    all: () => listed.map((metric) => charts.get(metric.name).chart),
    close() {
      watcher?.close();
      charts.forEach(({ chart }) => chart.close());
    },
  };
}
