// Requests that replace each other: one is under way, and only the newest of the waiting requests follows it.

// `send(request, ticket)` sends a request. `late(ticket)` handles an answer that comes after patience_ms. A request
// without an answer is sent once more, unless a newer one waits. `overdue()` runs if the second one has no answer
// either.
export function newestOnly({ send, late, overdue, patience_ms }) {
  let ticket = 0, isUnderWay = false, next = null, timer = 0;

  function add(request) {
    if (isUnderWay) next = request;
    else start(request, false);
  }

  function start(request, isRepeated) {
    isUnderWay = true;
    ticket += 1;
    const own = ticket;
    send(request, own);
    timer = setTimeout(() => {
      if (!next && !isRepeated) start(request, true);
      else if (answered(own)) overdue();
    }, patience_ms);
  }

  // Returns whether nothing is under way any more.
  function answered(number) {
    if (number < ticket) late(number);
    if (number !== ticket || !isUnderWay) return false;
    clearTimeout(timer);
    isUnderWay = false;
    const request = next;
    next = null;
    if (request) add(request);
    return !isUnderWay;
  }

  return { add, answered, isSettled: () => !isUnderWay };
}
