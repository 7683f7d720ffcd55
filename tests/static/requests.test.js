import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { newestOnly } from "../../static/lib/newest.js";
import { restAfter } from "../../static/lib/rest.js";
import { draftVersions } from "../../static/lib/versions.js";

test("of several requests one is under way, and only the newest of the others follows it", () => {
  const sent = [];
  const queue = newestOnly({ send: (...request) => sent.push(request), late() {}, overdue() {}, patience_ms: 1e6 });
  ["a", "b", "c"].forEach(queue.add);
  assert.deepEqual(sent, [["a", 1]]);
  assert.equal(queue.answered(1), false);
  assert.deepEqual(sent, [["a", 1], ["c", 2]]);
  assert.ok(queue.answered(2) && queue.isSettled());
});

test("after the patience the next request goes, and the late answer is told apart", () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const sent = [], late = [];
  let isOverdue = false;
  const queue = newestOnly({ send: (request) => sent.push(request), late: (ticket) => late.push(ticket),
    overdue: () => { isOverdue = true; }, patience_ms: 50 });
  queue.add("a");
  queue.add("b");
  mock.timers.tick(50);
  assert.deepEqual([sent, isOverdue], [["a", "b"], false]);
  queue.answered(1);
  assert.deepEqual(late, [1]);
  queue.answered(2);
  mock.timers.reset();
});

test("a request without an answer is sent once more before it is given up", () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const sent = [];
  let isOverdue = false;
  const queue = newestOnly({ send: (...request) => sent.push(request), late() {},
    overdue: () => { isOverdue = true; }, patience_ms: 50 });
  queue.add("a");
  mock.timers.tick(50);
  assert.deepEqual([sent, isOverdue, queue.isSettled()], [[["a", 1], ["a", 2]], false, false]);
  mock.timers.tick(50);
  assert.deepEqual([sent.length, isOverdue, queue.isSettled()], [2, true, true]);
  mock.timers.reset();
});

test("answers to edits of this page may come out of order; an edit of another page leaves the fields behind", () => {
  const versions = draftVersions();
  versions.note({ draft: 5, isSynced: true });
  versions.note({ draft: 7, span: [6, 7] });
  assert.ok(versions.isBehind());
  versions.note({ draft: 6, span: [5, 6] });
  assert.ok(!versions.isBehind());
  versions.note({ draft: 9, span: [8, 9] });
  assert.ok(versions.isBehind());
  versions.note({ draft: 9, isSynced: true });
  assert.ok(!versions.isBehind());
});

test("an input just after the last answer keeps the page from resting until its own edit is answered", () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  let rests = 0;
  const edits = restAfter({ pause_ms: 100, began() {}, ended: () => { rests += 1; } });
  edits.sent();
  edits.answered();
  mock.timers.tick(90);
  edits.typed();
  mock.timers.tick(30);
  assert.deepEqual([rests, edits.isResting()], [0, false]);
  edits.sent();
  mock.timers.tick(1000);
  assert.equal(rests, 0);
  edits.answered();
  mock.timers.tick(100);
  assert.deepEqual([rests, edits.isResting()], [1, true]);
  mock.timers.reset();
});
