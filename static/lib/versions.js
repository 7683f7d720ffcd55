// Which version of the draft the fields show, although versions come from several pages and out of order.

export function draftVersions() {
  // Edits of this page: from the version before to the version after.
  const own = new Map();
  let shown = null, newest = 0;

  return {
    // `draft`: the version of an answer; `span`: the versions before and after an edit of this page; `isSynced`: every
    // field shows the version of the answer.
    note({ draft, span, isSynced }) {
      if (span && span[1] > span[0]) own.set(span[0], span[1]);
      if (isSynced && draft > (shown ?? 0)) shown = draft;
      while (own.has(shown)) shown = own.get(shown);
      newest = Math.max(newest, draft);
    },
    // Another page has edited the draft, and the fields do not show it.
    isBehind: () => newest > shown,
    forgetOwn: () => own.clear(),
  };
}
