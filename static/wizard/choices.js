// A new choice of a plan replaces the previous one, for example while a key is held down. Gradio sends every event of a
// script at once, and the server may finish them in another order.
import { newestOnly } from "../lib/newest.js";
import { refresh, sendToServer } from "./channel.js";
import { fetchAll } from "./draft.js";

const queue = newestOnly({
  send: (plan, ticket) => sendToServer("choose", { plan, ticket }),
  // The widgets now show this choice, which may be older than the newest one.
  late: fetchAll,
  overdue: refresh,
  patience_ms: 8000,
});

export const isSettled = queue.isSettled;
export const answered = queue.answered;

// The draft's batch stays the same if the plans have it.
export const choosePlan = (row, keepsBatch) =>
  queue.add({ ...row, accumulation: keepsBatch ? row.accumulation : null });
