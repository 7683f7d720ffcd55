// An exponential moving average without the bias of its start: each value is divided by the sum of its weights.

// `weight` is the weight of the past, from 0 (no smoothing) to below 1.
export function Smoother(weight) {
  let value = 0, sum = 0;
  return {
    next(y) {
      value = weight * value + (1 - weight) * y;
      sum = weight * sum + (1 - weight);
      return Number((value / sum).toPrecision(9)); // a constant stays constant
    },
  };
}
