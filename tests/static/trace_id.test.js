import assert from "node:assert/strict";
import { test } from "node:test";
import { traceId } from "../../static/monitor/trace_id.js";

test("the id of a curve is a part of a CSS selector whatever its metric is called, and two names never have the same id", () => {
  const names = ["eval_rewards/accuracies", "eval/rewards_accuracies", "a b", "a.b", "损失", "loss", "lo_73_s", "a\"b#c"];
  for (const name of names) assert.match(traceId(name), /^[A-Za-z0-9_-]+$/);
  assert.equal(new Set(names.map(traceId)).size, names.length);
  assert.equal(traceId("loss"), "loss");
});
