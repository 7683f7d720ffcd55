// Tells the user when the server does not answer. Gradio tries again by itself and reloads the page when it is back;
// shell.js leads to the log-in when a restarted server no longer knows the session.
(() => {
  const PROBE = "/static/logo.svg";
  const PROBE_MS = 2000;
  const plainFetch = window.fetch;
  let probing = null;

  window.fetch = async (...request) => {
    try {
      const answer = await plainFetch(...request);
      found();
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
    const { el, w } = window.Megaboard.live;
    const words = [el("strong", {}, w("lost.title")), el("span", {}, w("lost.words"))];
    document.body.append(el("div", { id: "mb-lost", role: "alert" }, ...words));
  }

  function found() {
    if (!probing) return;
    clearInterval(probing);
    probing = null;
    document.getElementById("mb-lost").remove();
  }

  window.Megaboard = Object.assign(window.Megaboard || {}, { isLost: () => probing !== null });
})();
