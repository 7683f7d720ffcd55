import assert from "node:assert/strict";
import { test } from "node:test";
import { Detail } from "../../static/monitor/detail.js";

// A curve that the server thinned to every tenth step.
const thinned = () => {
  const x = Array.from({ length: 11 }, (_, index) => 10 * index);
  return { loss: { x, y: x.map((step) => -step) } };
};
const answer = (first, last) => {
  const x = Array.from({ length: last - first + 1 }, (_, index) => first + index);
  return { first, last, series: { loss: { x, y: x.map((step) => -step) } } };
};

test("all points of a zoomed range are requested once, and a range that lacks none is not", () => {
  const detail = Detail(thinned());
  assert.equal(detail.query(), null);
  detail.zoomed([24.6, 47.2]);
  assert.deepEqual(detail.query(), { first: 24, last: 48 });
  assert.ok(detail.take(answer(24, 48)));
  assert.equal(detail.query(), null);
  detail.zoomed([41, 48]);
  assert.equal(detail.query(), null);
});

test("the points of the range take the place of the thinned ones, in order", () => {
  const detail = Detail(thinned());
  detail.zoomed([24, 48]);
  detail.take(answer(24, 48));
  const { x, y } = detail.points("loss");
  assert.deepEqual(x, [0, 10, 20, ...answer(24, 48).series.loss.x, 50, 60, 70, 80, 90, 100]);
  assert.ok(y.every((value, index) => value + x[index] === 0));
});

test("an answer to an earlier zoom is dropped, and zooming out shows the thinned curve", () => {
  const detail = Detail(thinned());
  detail.zoomed([24, 48]);
  assert.ok(!detail.take(answer(0, 5)));
  detail.take(answer(24, 48));
  assert.ok(detail.zoomed(null));
  assert.equal(detail.points("loss").x.length, 11);
});
