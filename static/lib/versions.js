// Which version of the draft the fields show. Versions come from several pages and out of order.

export function draftVersions() {
  // Edits of this page: from the version before to the version after.
  const own = new Map();
  let shown = null, newest = 0;

  return {
    // `draft` is the version of an answer. `span` has the versions before and after an edit of this page. `isSynced`
    // says that every field shows the version of the answer.
    note({ draft, span, isSynced }) {
      if (span && span[1] > span[0]) own.set(span[0], span[1]);
      if (isSynced && draft > (shown ?? 0)) shown = draft;
      while (own.has(shown)) shown = own.get(shown);
      newest = Math.max(newest, draft);
    },
    // Returns whether another page has edited the draft and the fields do not show the edit.
    isBehind: () => newest > shown,
    forgetOwn: () => own.clear(),
  };
}
