// Whether the page rests: every edit has its answer, and a pause has passed without an edit.

export function restAfter({ pause_ms, began, ended }) {
  let underWay = 0, timer = 0, isResting = true;
  const wait = () => {
    clearTimeout(timer);
    timer = setTimeout(() => { isResting = true; ended(); }, pause_ms);
  };

  return {
    isResting: () => isResting,
    sent() {
      underWay += 1;
      clearTimeout(timer);
      isResting = false;
      began();
    },
    answered() {
      underWay -= 1;
      if (!underWay) wait();
    },
    // Gradio sends an edit some milliseconds after the key press. If the pause ended in between, the new input would
    // count as taken by the server, and it would be lost with the server.
    typed() {
      if (!isResting && !underWay) wait();
    },
  };
}
