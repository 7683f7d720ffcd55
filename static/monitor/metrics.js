// Charts of the numbers that a run logs under names of its own, by group. A closed group requests no values.
import { h, keyed, text } from "../lib/dom.js";
import { watchPlots } from "../lib/plots.js";
import { w } from "../lib/words.js";
import { Chart } from "./chart.js";

// Most points of a curve. A curve that has grown longer is requested as a whole, and the server thins it.
const MOST = 1500;
// Group of names that mark steps in all charts. They have no chart.
const MARKS = "marks";

// `view` is that of chart_view.js, `link` is that of chart.js.
export function Metrics(view, link) {
  const root = h("div.mbm-metrics");
  const charts = new Map();
  let listed = [], run = "", watcher = null;

  function takeNames(ofRun, names) {
    run = ofRun;
    listed = names;
    for (const metric of names) if (!charts.has(metric.name)) charts.set(metric.name, entry(metric));
    arrange();
    watcher?.close();
    watcher = watchPlots([...charts.values()].map(({ chart }) => chart.plot), () => shown().forEach(({ chart }) => chart.redraw()));
    link.poll();
  }

  // Puts the charts that are not hidden into their groups, in the order of the user.
  function arrange() {
    const groups = [...new Map(listed.filter(hasChart).map((metric) => [metric.group, metric])).values()];
    keyed(root, groups, (metric) => metric.group, makeGroup, updateGroup);
  }

  const hasChart = (metric) => metric.group !== MARKS && !view.isHidden(metric.name);

  function entry(metric) {
    const title = metric.unit ? w("metrics.title", { title: metric.title, unit: metric.unit }) : metric.title;
    const spec = { key: metric.name, name: metric.name, title, label: metric.title, series: [metric.name] };
    return { metric, chart: Chart(spec, view, link), version: -1, last: -1 };
  }

  function makeGroup(metric) {
    const isOpen = view.chosen.groups[metric.group] ?? !metric.closed;
    return h("details.mbm-group", { open: isOpen, ontoggle: (event) => {
      view.choose({ groups: { ...view.chosen.groups, [metric.group]: event.target.open } });
      link.poll();
    } }, h("summary", {}, h("h3"), h("span.mb-quiet")), h("div.mbm-charts"));
  }

  function updateGroup(group, { group: name, group_title: title }) {
    const members = keysOf(name);
    const [heading, count] = group.firstChild.children;
    text(heading, title);
    text(count, w(members.length === 1 ? "metrics.one" : "metrics.count", { count: members.length }));
    keyed(group.lastChild, members, (key) => key, (key) => charts.get(key).chart.card, () => {});
  }

  const keysOf = (group) => view.ordered(listed.filter((metric) => metric.group === group && hasChart(metric)).map(({ name }) => name));

  // Returns the entries of open groups.
  const shown = () => [...root.children].filter((group) => group.open).flatMap((group) =>
    [...group.lastChild.children].map((card) => charts.get(card.dataset.chart)));

  // Returns the entries whose steps are marked in all charts.
  const marking = () => [...charts.values()].filter(({ metric }) => metric.group === MARKS || metric.is_mark);

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

  const stepsOf = (entries) => [...new Set(entries.flatMap(({ metric, chart }) => chart.data()[metric.name].x))];

  return {
    root,
    takeNames,
    takeValues,
    takeDetail,
    arrange,
    groupOf: (key) => charts.get(key)?.metric.group,
    keysOf,
    // Returns the steps of evaluations and of checkpoints.
    marks: () => ({
      evaluations: stepsOf(marking().filter(({ metric }) => metric.is_mark)),
      checkpoints: stepsOf(marking().filter(({ metric }) => metric.group === MARKS)),
    }),
    query: () => Object.fromEntries([...new Set([...marking(), ...shown()])].map(({ chart, version, last }) => {
      const name = chart.spec.key, isLong = chart.data()[name].x.length > MOST;
      return [name, isLong ? [] : [version, last].map((value) => Math.max(0, value))];
    })),
    detailQuery: () => shown().map(({ chart }) => chart.detail.query()).find(Boolean),
    data: (name) => charts.get(name)?.chart.data()[name],
    all: () => listed.filter(hasChart).map((metric) => charts.get(metric.name).chart),
    titleOf: (key) => charts.get(key)?.chart.spec.title,
    close() {
      watcher?.close();
      charts.forEach(({ chart }) => chart.close());
    },
  };
}
