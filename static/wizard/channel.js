// The wizard's channel to the server: it sends events, and the server answers each edit with a payload of JSON.
/** @type {(event: string, data: object) => void} */
let trigger = () => {};
let latest = null;
// The newest payload with the data of a step, by step.
const known = new Map();
// What answers one request, and says nothing of the draft.
const OF_ONE_ANSWER = ["ticket", "span", "synced", "resent"];

export function connect(gradioTrigger) {
  trigger = gradioTrigger;
}

export const currentStep = () => document.documentElement.dataset.step || "hardware";

// Each step shows other figures, so every event names the step.
export const sendToServer = (event, data = {}) => trigger(event, { ...data, step: currentStep() });
export const refresh = () => sendToServer("refresh");

export const latestPayload = () => latest;

// The server may answer two edits out of order. A payload that is older than the one on screen is dropped.
export function keep(payload) {
  if (payload.at <= (known.get(payload.step)?.at ?? 0)) return false;
  known.set(payload.step, payload);
  const data = { ...latest?.data, ...payload.data };
  latest = payload.at > (latest?.at ?? 0) ? { ...latest, ...payload, data } : { ...latest, data };
  for (const key of OF_ONE_ANSWER) delete latest[key];
  return true;
}

// If the user turns to the next step before an edit is answered, the answer has the data of the previous step.
export const isStale = () => Boolean(latest) && (known.get(currentStep())?.draft ?? 0) < latest.draft;
