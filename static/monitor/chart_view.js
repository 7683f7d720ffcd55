// How all charts of a run are drawn: the quantity of the x axis and the smoothing.

export function ChartView() {
  return {
    smoothing: () => 0.8,
    x: (steps) => [...steps],
    steps: (range) => range,
  };
}
