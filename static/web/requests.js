// All requests of the page pass through here, also Gradio's, so that watchers learn when they end.
const watchers = [];

// `watcher(address, options)` is called before a request and may return { answered(answer), failed(error) }.
export const watchRequests = (watcher) => { watchers.push(watcher); };

const plainFetch = window.fetch;

window.fetch = async (...request) => {
  const watched = watchers.map((watcher) => watcher(...request)).filter(Boolean);
  const answer = await plainFetch(...request).catch((error) => {
    watched.forEach((watcher) => watcher.failed?.(error));
    throw error;
  });
  watched.forEach((watcher) => watcher.answered?.(answer));
  return answer;
};
