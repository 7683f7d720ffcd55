// The wizard's channel to the server: events go out, and after every edit a payload of JSON comes back.
/** @type {(event: string, data: object) => void} */
let trigger = () => {};
let latest = null;
// The newest payload that held what a step shows, by step.
const known = new Map();

export function connect(gradioTrigger) {
  trigger = gradioTrigger;
}

export const currentStep = () => document.documentElement.dataset.step || "hardware";

// Another step shows other figures, so every event names the step.
export const sendToServer = (event, data = {}) => trigger(event, { ...data, step: currentStep() });
export const refresh = () => sendToServer("refresh");

export const latestBundle = () => latest;

// Two edits may be answered out of order: a payload that is older than what is on screen is dropped.
export function keep(bundle) {
  if (bundle.at <= (known.get(bundle.step)?.at ?? 0)) return false;
  known.set(bundle.step, bundle);
  const data = { ...latest?.data, ...bundle.data };
  latest = bundle.at > (latest?.at ?? 0) ? { ...latest, ...bundle, data } : { ...latest, data };
  return true;
}

// An edit that is answered after the next step was shown holds what the step before shows.
export const isStale = () => Boolean(latest) && (known.get(currentStep())?.draft ?? 0) < latest.draft;
