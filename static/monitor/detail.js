// The range that a chart is zoomed into. The server thins curves, so the page requests all points of this range. `data`
// maps a series to { x, y } in ascending order; each series grows at its end.
export function Detail(data) {
  let zoom = null;
  let fetched = null;

  // Returns the request for the server, or null if every step on screen has its point.
  function query() {
    if (!zoom || isSame(fetched, zoom)) return null;
    const lacks = Object.values(data).some(({ x }) => {
      const [begin, end] = [firstFrom(x, zoom.first), firstFrom(x, zoom.last + 1)];
      return begin < end && end - begin <= x[end - 1] - x[begin];
    });
    return lacks ? zoom : null;
  }

  return {
    query,
    // `range` has the steps on screen; null means all steps. Returns whether the chart must be redrawn now.
    zoomed(range) {
      zoom = range && { first: Math.max(0, Math.floor(range[0])), last: Math.max(0, Math.ceil(range[1])) };
      const was = fetched;
      if (!zoom) fetched = null;
      return was !== fetched;
    },
    // Returns whether `detail` answers the current request.
    take(detail) {
      if (!isSame(detail, zoom)) return false;
      fetched = detail;
      return true;
    },
    forget() {
      fetched = null;
    },
    // Returns a copy of a series with all known points of the range.
    points(name) {
      const { x, y } = data[name];
      const fine = fetched?.series[name];
      if (!fine?.x.length) return { x: [...x], y: [...y] };
      const [begin, end] = [firstFrom(x, fetched.first), firstFrom(x, fine.x.at(-1) + 1)];
      return {
        x: [...x.slice(0, begin), ...fine.x, ...x.slice(end)],
        y: [...y.slice(0, begin), ...fine.y, ...y.slice(end)],
      };
    },
  };
}

function isSame(one, other) {
  return Boolean(one && other) && one.first === other.first && one.last === other.last;
}

// Returns the index of the first step that is not below `step`. `steps` are ascending.
function firstFrom(steps, step) {
  let [low, high] = [0, steps.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1;
    else high = middle;
  }
  return low;
}
