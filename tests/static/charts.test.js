import assert from "node:assert/strict";
import { test } from "node:test";
import { Smoother } from "../../static/monitor/smoothing.js";
import { toStep, toX } from "../../static/monitor/x_axis.js";

const axis = { steps: [1, 11, 21], time: [0, 100, 500], tokens: [10, 1010, 3010], samples: 4 };

test("steps become tokens, samples and minutes, and what lies beyond the newest known step goes on at the last rate", () => {
  assert.deepEqual(toX("step", axis, [1, 6]), [1, 6]);
  assert.deepEqual(toX("samples", axis, [1, 6]), [4, 24]);
  assert.deepEqual(toX("tokens", axis, [1, 6, 21, 31]), [10, 510, 3010, 5010]);
  assert.deepEqual(toX("time", axis, [11, 21, 26]), [100 / 60, 500 / 60, 700 / 60]);
});

test("an axis whose values are not known is no axis", () => {
  assert.equal(toX("tokens", { ...axis, tokens: null }, [1]), null);
  assert.equal(toX("samples", { ...axis, samples: null }, [1]), null);
  assert.equal(toX("time", null, [1]), null);
  assert.equal(toX("tokens", { steps: [1], time: [0], tokens: [5], samples: null }, [1]), null);
});

test("a zoomed range of any axis is one of steps", () => {
  for (const kind of ["step", "tokens", "samples", "time"])
    for (const step of [1, 5, 16, 30]) assert.ok(Math.abs(toStep(kind, axis, toX(kind, axis, [step])[0]) - step) < 1e-9, kind);
});

test("smoothing keeps a constant, has no bias at its start, and is the values themselves at weight 0", () => {
  const smoothed = (weight, values) => values.map(Smoother(weight).next);
  assert.deepEqual(smoothed(0.9, [0.1, 0.1, 0.1]), [0.1, 0.1, 0.1]);
  assert.deepEqual(smoothed(0, [3, 1, 2]), [3, 1, 2]);
  const [first, second] = smoothed(0.5, [4, 1]);
  assert.deepEqual([first, second], [4, 2]);
});
