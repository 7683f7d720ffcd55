import assert from "node:assert/strict";
import { test } from "node:test";
import { shownRuns, sortedRuns } from "../../static/monitor/runs_order.js";

const run = (id, values = {}) => ({ id, name: id, engine: "llamafactory-ddp", state: "finished", created: 0, step: 1, total: 2,
  ...values, labels: { tags: [], note: "", hidden: false, ...values.labels } });
const ids = (rows) => rows.map((row) => row.id).join("");
const all = { search: "", isHiddenShown: false, stateWords: (state) => state };

test("every word of a search must be found, in any of the texts of a run", () => {
  const rows = [run("a", { labels: { tags: ["Baseline"] } }), run("b", { labels: { note: "base lr 1e-5" } }), run("c")];
  assert.equal(ids(shownRuns(rows, { ...all, search: "base" })), "ab");
  assert.equal(ids(shownRuns(rows, { ...all, search: " base 1e-5" })), "b");
  assert.equal(ids(shownRuns(rows, { ...all, search: "finished ddp" })), "abc");
});

test("hidden runs are shown only on request", () => {
  const rows = [run("a", { labels: { hidden: true } }), run("b")];
  assert.equal(ids(shownRuns(rows, all)), "b");
  assert.equal(ids(shownRuns(rows, { ...all, isHiddenShown: true })), "ab");
});

test("runs without a value stand last in both directions, and equal runs keep their order", () => {
  const rows = [run("a", { metric: null }), run("b", { metric: { last: 2, best: 1 } }), run("c", { metric: { last: 1, best: 1 } })];
  assert.equal(ids(sortedRuns(rows, { column: "last", isDescending: false })), "cba");
  assert.equal(ids(sortedRuns(rows, { column: "last", isDescending: true })), "bca");
  assert.equal(ids(sortedRuns(rows, { column: "best", isDescending: false })), "bca");
  assert.equal(ids(sortedRuns(rows, { column: "", isDescending: false })), "abc");
});
