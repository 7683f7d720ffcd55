// Tells the user when the server does not answer, or answers that it failed: of that Gradio says nothing. It tries again
// by itself and reloads the page when the server is back; shell.js leads to the log-in when a restarted one no longer
// knows the session.
(() => {
  const PROBE = "/static/logo.svg";
  const PROBE_MS = 2000;
  const plainFetch = window.fetch;
  let probing = null;

  window.fetch = async (...request) => {
    try {
      const answer = await plainFetch(...request);
      found();
      if (answer.status >= 500) failed();
      return answer;
    } catch (error) {
      // an aborted request is somebody's decision, not a lost server
      if (error.name === "TypeError") lost();
      throw error;
    }
  };

  function lost() {
    if (probing) return;
    probing = setInterval(() => window.fetch(PROBE, { cache: "no-store" }).catch(() => {}), PROBE_MS);
    tell("lost");
  }

  function tell(what, ...more) {
    const { el, w } = window.Megaboard.live;
    const words = [el("strong", {}, w(`${what}.title`)), el("span", {}, w(`${what}.words`))];
    document.body.append(el("div", { id: `mb-${what}`, class: "mb-notice", role: "alert" }, ...words, ...more));
  }

  function failed() {
    if (document.getElementById("mb-failed")) return;
    const { el, w } = window.Megaboard.live;
    const close = () => document.getElementById("mb-failed").remove();
    tell("failed", el("button", { type: "button", onclick: close }, w("failed.close")));
  }

  function found() {
    if (!probing) return;
    clearInterval(probing);
    probing = null;
    document.getElementById("mb-lost").remove();
  }

  window.Megaboard = Object.assign(window.Megaboard || {}, { isLost: () => probing !== null });
})();
