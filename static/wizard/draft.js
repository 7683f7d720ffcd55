// One draft may be open in two tabs. A tab fetches the edits of the other tab, so that fields and table show the same
// draft.
import { restAfter } from "../lib/rest.js";
import { draftVersions } from "../lib/versions.js";
import { watchRequests } from "../web/requests.js";
import { latestPayload, sendToServer } from "./channel.js";
import { resend, resent, taken } from "./pending_edits.js";

// The answer to an edit of this page may take this long.
const QUIET_MS = 1500;
const versions = draftVersions();
let timer = 0, typedAt = 0, fetchedAt = 0;

// A payload has the draft's version, and the versions before and after an edit of this page.
export function note({ draft, span, synced, resent: isResent }) {
  if (draft === undefined) return;
  if (isResent) resent();
  if (synced) resend();
  // Fields in which the user typed during a fetch may have been overwritten.
  versions.note({ draft, span, isSynced: synced && typedAt <= fetchedAt });
  clearTimeout(timer);
  if (versions.isBehind()) timer = setTimeout(fetchAll, QUIET_MS);
}

export const fetchAll = () => atRest(() => {
  versions.forgetOwn();
  fetchedAt = Date.now();
  const isTyping = fetchedAt - typedAt < QUIET_MS;
  sendToServer("sync", { typed: isTyping ? document.activeElement?.closest(".block")?.id ?? "" : "" });
});

// Edits of this page that have no answer yet, without choices of a plan. Until the answer comes, the figures may be of
// the previous draft. Of several edits of a field, Gradio sends the last one after the first answer, hence the pause.
const PAUSE_MS = 100;
const waiting = [];
let isLost = false, changed = () => {};
const isEdit = (address, options) => String(address).endsWith("/run/predict") && typeof options?.body === "string"
  && !options.body.includes('"ticket":');

const edits = restAfter({ pause_ms: PAUSE_MS, began: () => changed(), ended: rest });
export const isResting = edits.isResting;

// `listener` runs when the first edit is sent, and when no edit is left without an answer.
export const onRestChange = (listener) => { changed = listener; };

watchRequests((address, options) => {
  if (!isEdit(address, options)) return null;
  edits.sent();
  const ended = (isFailure) => {
    isLost ||= isFailure;
    edits.answered();
  };
  return { answered: ({ status }) => ended(status === 401), failed: () => ended(true) };
});

function rest() {
  if (!isLost) taken();
  changed();
  actNow();
}

const actNow = () => { for (const act of waiting.splice(0)) act(); };

// A request about figures waits until the figures are of the newest edit.
export const atRest = (act) => { if (isResting()) act(); else waiting.push(act); };

// Waiting requests are sent before the next input.
document.addEventListener("input", () => {
  typedAt = Date.now();
  edits.typed();
  actNow();
}, true);

// A choice from a list is made by a press of the pointer, without an input event.
document.addEventListener("pointerdown", edits.typed, true);

// Another window may have edited the draft in the meantime.
window.addEventListener("focus", () => latestPayload() && sendToServer("refresh"));
