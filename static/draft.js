// One draft, perhaps in two tabs: what another page has changed is fetched, so that fields and table say the same.
(() => {
  const board = (window.Megaboard = window.Megaboard || {});
  // An answer to an edit of this page's own may still be on its way.
  const QUIET_MS = 1500;
  const own = new Map();
  let shown = null, newest = 0, timer = 0, typedAt = 0, fetchedAt = 0;

  // A bundle names the draft's version, and what versions an edit of this page went from and to.
  function note({ draft, span, synced, resent }) {
    if (draft === undefined) return;
    if (resent) board.unsent.resent();
    if (synced) board.unsent.resend();
    if (span && span[1] > span[0]) own.set(...span);
    // What was typed while the fields were fetched may have been overwritten.
    if (synced && draft > (shown ?? 0) && typedAt <= fetchedAt) shown = draft;
    while (own.has(shown)) shown = own.get(shown);
    newest = Math.max(newest, draft);
    clearTimeout(timer);
    if (newest > shown) timer = setTimeout(fetchAll, QUIET_MS);
  }

  const fetchAll = () => atRest(() => {
    own.clear();
    fetchedAt = Date.now();
    const isTyping = fetchedAt - typedAt < QUIET_MS;
    board.wizard.send("sync", { typed: isTyping ? document.activeElement?.closest(".block")?.id ?? "" : "" });
  });

  // Events of this page that are not answered yet, choices among plans left out: until then what is drawn may be of the
  // draft before. Of several edits of a field Gradio sends the last when the one before is answered, hence the pause.
  const PAUSE_MS = 100;
  const plainFetch = window.fetch, waiting = [];
  let underWay = 0, pause = 0, isResting = true, isLost = false;
  const isEdit = (address, { body } = {}) => String(address).endsWith("/run/predict") && typeof body === "string"
    && !body.includes('"ticket":');

  window.fetch = async (...request) => {
    if (!isEdit(...request)) return plainFetch(...request);
    underWay += 1;
    clearTimeout(pause);
    isResting = false;
    board.wizard?.markBusy();
    try {
      const answer = await plainFetch(...request);
      isLost ||= answer.status === 401;
      return answer;
    } catch (error) {
      isLost = true;
      throw error;
    } finally {
      underWay -= 1;
      if (!underWay) pause = setTimeout(rest, PAUSE_MS);
    }
  };

  function rest() {
    isResting = true;
    if (!isLost) board.unsent.taken();
    board.wizard?.markBusy();
    actNow();
  }

  const actNow = () => { for (const act of waiting.splice(0)) act(); };

  // What is asked of figures that are being computed anew is asked of the new ones.
  const atRest = (act) => { if (isResting) act(); else waiting.push(act); };

  // What was asked before something was typed comes before it.
  document.addEventListener("input", () => {
    typedAt = Date.now();
    actNow();
  }, true);

  // Another window may have changed it meanwhile.
  window.addEventListener("focus", () => board.wizard?.bundle() && board.wizard.send("refresh"));

  board.draft = { note, fetchAll, atRest, isResting: () => isResting };
})();
