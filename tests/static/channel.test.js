import assert from "node:assert/strict";
import { test } from "node:test";
import { keep, latestPayload } from "../../static/wizard/channel.js";

test("what only answers one request is not kept for the next payload", () => {
  const answer = { at: 1, step: "plan", draft: 5, ticket: 3, span: [4, 5], synced: true, resent: true };
  assert.ok(keep({ ...answer, data: { plans: 1 } }));
  assert.ok(keep({ at: 2, step: "model", draft: 6, data: { model: 2 } }));
  assert.deepEqual(latestPayload(), { at: 2, step: "model", draft: 6, data: { plans: 1, model: 2 } });
});

test("an older payload adds the data of its own step alone", () => {
  assert.ok(keep({ at: 5, step: "plan", draft: 9, data: { plans: 3 } }));
  assert.ok(keep({ at: 4, step: "model", draft: 8, ticket: 7, data: { model: 4 } }));
  assert.deepEqual(latestPayload(), { at: 5, step: "plan", draft: 9, data: { plans: 3, model: 4 } });
  assert.ok(!keep({ at: 3, step: "model", draft: 7, data: { model: 5 } }));
});
