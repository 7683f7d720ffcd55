// Notices for a server that does not answer or that failed. Gradio shows neither: it retries, and it reloads the page
// when the server is back. A restarted server requires a new log-in (shell.js).
import { h } from "../lib/dom.js";
import { w } from "../lib/words.js";
import { watchRequests } from "./requests.js";

const PROBE = "/static/logo.svg";
const PROBE_MS = 2000;
let probing = null;

export const isLost = () => probing !== null;

watchRequests(() => ({
  answered({ status }) {
    answered();
    if (status >= 500) failed();
  },
  failed(error) {
    // The page itself aborted the request: the server is not lost.
    if (error.name === "TypeError") lost();
  },
}));

function lost() {
  if (probing) return;
  probing = setInterval(() => window.fetch(PROBE, { cache: "no-store" }).catch(() => {}), PROBE_MS);
  notify("lost");
}

function answered() {
  if (!probing) return;
  clearInterval(probing);
  probing = null;
  document.getElementById("mb-lost").remove();
}

function failed() {
  if (document.getElementById("mb-failed")) return;
  const close = () => document.getElementById("mb-failed").remove();
  notify("failed", h("button", { type: "button", onclick: close }, w("failed.close")));
}

function notify(kind, ...more) {
  document.body.append(h("div.mb-notice", { id: `mb-${kind}`, role: "alert" }, h("strong", {}, w(`${kind}.title`)),
    h("span", {}, w(`${kind}.words`)), more));
}
