// Which runs the list shows, and in which order. Pure functions of the rows that the server sends.

// Every word of `search` must be part of the run's name, id, engine, tags, note or state.
export function shownRuns(rows, { search, isHiddenShown, stateWords }) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter((run) => {
    if (run.labels.hidden && !isHiddenShown) return false;
    const text = [run.name, run.id, run.engine, stateWords(run.state), ...run.labels.tags, run.labels.note].join("\n").toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

const VALUES = {
  name: (run) => run.name.toLowerCase(),
  state: (run) => run.state,
  engine: (run) => run.engine,
  started: (run) => run.created,
  progress: (run) => (run.total ? (run.step ?? 0) / run.total : null),
  last: (run) => run.metric?.last ?? null,
  best: (run) => run.metric?.best ?? null,
};

export const SORTABLE = Object.keys(VALUES);

// Runs without a value stand last, whatever the direction. Equal runs keep their order, newest first.
export function sortedRuns(rows, { column, isDescending }) {
  const valueOf = VALUES[column];
  if (!valueOf) return rows;
  const isUnknown = (value) => value === null || Number.isNaN(value);
  return [...rows].sort((one, other) => {
    const [a, b] = [valueOf(one), valueOf(other)];
    if (isUnknown(a) || isUnknown(b)) return Number(isUnknown(a)) - Number(isUnknown(b));
    const order = a < b ? -1 : a > b ? 1 : 0;
    return isDescending ? -order : order;
  });
}
