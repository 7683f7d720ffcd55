import assert from "node:assert/strict";
import { test } from "node:test";
import { BREAK, layoutOf, NAME, passesOf, SIDE } from "../../static/wizard/timeline_layout.js";

// Two stages, two micro-batches: 1F1B with passes of one and two seconds.
const PLAN = { stages: 2, virtual: 1, left_out: 0, total_s: 9, drawn_s: 9, tick_s: 0.5, warm_s: 2, cool_s: 6,
  forward_s: [[1], [1]], backward_s: [[2], [2]], busy_s: [6, 6],
  passes: [[0, 0, 2, 2, 1, 8, 3, 14], [0, 2, 1, 4, 2, 8, 3, 10]] };
const CUT = { ...PLAN, left_out: 6, total_s: 27, warm_s: 2, cool_s: 6 };
const WIDTH = NAME + SIDE + 900;
const layout = (plan, width = WIDTH) => layoutOf(plan, passesOf(plan), width);

test("a pass is unpacked from its code and its tick", () => {
  assert.deepEqual(passesOf(PLAN)[1][1], { stage: 1, chunk: 0, isBackward: true, micro: 0, start: 2, end: 4 });
  const chunks = passesOf({ ...PLAN, virtual: 2, forward_s: [[1, 3], [1, 3]], passes: [[2, 0], [10, 4]] });
  assert.deepEqual(chunks.map(([pass]) => [pass.micro, pass.chunk, pass.end]), [[0, 1, 3], [2, 1, 5]]);
});

test("boxes lie in their lane in proportion to time, and none covers another", () => {
  const { boxes, lanes } = layout(PLAN);
  assert.equal(boxes.length, 8);
  for (const { pass, left, right, top, bottom } of boxes) {
    const lane = lanes[pass.stage];
    assert.deepEqual([top, bottom], [lane.top, lane.bottom]);
    assert.ok(left >= lane.left && right <= lane.right + 1e-9);
    assert.ok(Math.abs(right - left - 100 * (pass.end - pass.start)) < 1e-9);
    const others = boxes.filter((box) => box.top === top && box.left > left);
    assert.ok(others.every((box) => box.left >= right - 1e-9));
  }
});

test("a pass over the cut is drawn on both sides of the gap, with the numbers of the left-out micro-batches", () => {
  const { boxes, cut, lanes } = layout({ ...CUT, cool_s: 10 }, WIDTH + BREAK);
  assert.equal(cut, 6);
  assert.equal(lanes[1].left - lanes[0].right, BREAK);
  const halves = boxes.filter(({ pass }) => pass.start === 5 && pass.end === 7);
  assert.deepEqual(halves.map(({ number, right, left }) => [number, Math.round(right - left)]), [[2, 100], [8, 100]]);
});

test("the phases meet and end with the drawing", () => {
  const { phases, end } = layout(PLAN);
  assert.deepEqual(phases.map(({ left }) => left).slice(1), phases.map(({ right }) => right).slice(0, 2));
  assert.equal(phases[2].right, end);
});

test("the time axis counts from the start, and after the gap to the end", () => {
  assert.deepEqual(layout(PLAN).ticks.map(({ words }) => words), ["0 s", "2 s", "4 s", "6 s", "8 s"]);
  const words = layout(CUT).ticks.map(({ words }) => Number.parseFloat(words));
  assert.ok(words.some((time) => time > 22) && !words.some((time) => time > 4 && time < 22) && Math.max(...words) <= 27);
});

test("more stages make lower rows", () => {
  const rows = [2, 16, 32, 64].map((stages) => layout({ ...PLAN, stages }).row);
  assert.deepEqual(rows, [...rows].sort((a, b) => b - a));
});
