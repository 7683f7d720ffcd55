// The range that a chart is zoomed into: curves are sent thinned, so all points of such a range are requested.
// `data`: series -> { x, y }, ascending; each series grows at its end.
export function Detail(data) {
  let zoom = null;
  let fetched = null;

  // The request for the server; null if every step on screen has its point.
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
    // `range`: the steps on screen, null for all. Returns whether the drawing must change at once.
    zoomed(range) {
      zoom = range && { first: Math.max(0, Math.floor(range[0])), last: Math.max(0, Math.ceil(range[1])) };
      const was = fetched;
      if (!zoom) fetched = null;
      return was !== fetched;
    },
    // Returns whether it answers the current request.
    take(detail) {
      if (!isSame(detail, zoom)) return false;
      fetched = detail;
      return true;
    },
    forget() {
      fetched = null;
    },
    // A copy of a series, with all known points of the range.
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

// The index of the first of the ascending steps that is not below `step`.
function firstFrom(steps, step) {
  let [low, high] = [0, steps.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1;
    else high = middle;
  }
  return low;
}
