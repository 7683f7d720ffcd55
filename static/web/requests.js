// Every request of the page passes here, Gradio's included, so that others hear of its end.
const watchers = [];

// `watcher(address, options)` is called before a request and may return { answered(answer), failed(error) }.
export const watchRequests = (watcher) => { watchers.push(watcher); };

const plainFetch = window.fetch;

window.fetch = async (...request) => {
  const watched = watchers.map((watcher) => watcher(...request)).filter(Boolean);
  const answer = await plainFetch(...request).catch((error) => {
    watched.forEach((one) => one.failed?.(error));
    throw error;
  });
  watched.forEach((one) => one.answered?.(answer));
  return answer;
};
