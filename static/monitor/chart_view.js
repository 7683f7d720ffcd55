// How all charts of the page are drawn: x axis, smoothing, zoom, and which charts are shown in which order. The browser
// keeps the choices for all runs, except the zoom.
import { timeUnit, toStep, toX } from "./x_axis.js";

const STORED = "megaboard.charts";
const FIRST = { x: "step", smoothing: 0.8, marks: true, log: [], hidden: [], order: [], groups: {} };

export function ChartView() {
  const chosen = { ...FIRST, ...stored() };
  const listeners = [];
  let axis = null, zoom = null, marks = { evaluations: [], checkpoints: [] };

  function choose(changes) {
    Object.assign(chosen, changes);
    try {
      localStorage.setItem(STORED, JSON.stringify(chosen));
    } catch {
      // A browser that keeps nothing forgets the choice with the page.
    }
  }

  const kind = () => toX(chosen.x, axis, [0]) ? chosen.x : "step";
  const toggled = (list, key) => list.includes(key) ? list.filter((one) => one !== key) : [...list, key];

  return {
    chosen,
    choose,
    kind,
    // Returns the key of the words of the x axis.
    xWords: () => kind() === "time" ? `axis.time.${timeUnit(axis) === 60 ? "minutes" : "hours"}` : `axis.${kind()}`,
    smoothing: () => chosen.smoothing,
    isLog: (key) => chosen.log.includes(key),
    isHidden: (key) => chosen.hidden.includes(key),
    toggleLog: (key) => choose({ log: toggled(chosen.log, key) }),
    toggleHidden: (key) => choose({ hidden: toggled(chosen.hidden, key) }),
    x: (steps) => toX(kind(), axis, steps),
    steps: (range) => range.map((value) => toStep(kind(), axis, value)),
    takeAxis: (next) => { axis = next; },
    axisQuery: () => chosen.x === "step" ? undefined : axis?.steps.at(-1) ?? 0,
    hasSamples: () => axis === null || Boolean(axis.samples),
    marks: () => chosen.marks ? marks : { evaluations: [], checkpoints: [] },
    takeMarks: (next) => { marks = next; },
    zoom: () => zoom,
    // `steps` are the first and the last step on screen; null shows all. All charts follow the one that was zoomed.
    setZoom(steps, source) {
      zoom = steps;
      listeners.forEach((listener) => listener(source));
    },
    onZoom: (listener) => listeners.push(listener),
    // Returns the keys in the order of the user; new ones follow.
    ordered: (keys) => [...chosen.order.filter((key) => keys.includes(key)), ...keys.filter((key) => !chosen.order.includes(key))],
    move(keys, key, by) {
      const next = [...keys], from = next.indexOf(key), to = Math.min(next.length - 1, Math.max(0, from + by));
      next.splice(to, 0, ...next.splice(from, 1));
      choose({ order: [...next, ...chosen.order.filter((one) => !next.includes(one))] });
    },
  };
}

function stored() {
  try {
    const value = JSON.parse(localStorage.getItem(STORED) ?? "{}");
    return Object.fromEntries(Object.entries(value).filter(([name, one]) =>
      name in FIRST && typeof one === typeof FIRST[name] && Array.isArray(one) === Array.isArray(FIRST[name])));
  } catch {
    return {};
  }
}
