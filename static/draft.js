// One draft, perhaps in two tabs: what another page has changed is fetched, so that fields and table say the same.
(() => {
  const board = (window.Megaboard = window.Megaboard || {});
  // An answer to an edit of this page's own may still be on its way.
  const QUIET_MS = 1500;
  const own = new Map();
  let shown = null, newest = 0, timer = 0, typedAt = 0;

  // A bundle names the draft's version, and what versions an edit of this page went from and to.
  function note({ draft, span, synced }) {
    if (draft === undefined) return;
    if (span && span[1] > span[0]) own.set(...span);
    if (synced && draft > (shown ?? 0)) shown = draft;
    while (own.has(shown)) shown = own.get(shown);
    newest = Math.max(newest, draft);
    clearTimeout(timer);
    if (newest > shown) timer = setTimeout(fetchAll, QUIET_MS);
  }

  function fetchAll() {
    own.clear();
    const isTyping = Date.now() - typedAt < QUIET_MS;
    board.wizard.send("sync", { typed: isTyping ? document.activeElement?.closest(".block")?.id ?? "" : "" });
  }

  document.addEventListener("input", () => { typedAt = Date.now(); }, true);

  // Another window may have changed it meanwhile.
  window.addEventListener("focus", () => board.wizard?.bundle() && board.wizard.send("refresh"));

  board.draft = { note, fetchAll };
})();
