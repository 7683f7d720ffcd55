// Gradio's first "Loading" (6.31.0) does not stop its clock when it ends: it requests sixty frames a second while the
// page is open. This script stops a chain of frames that began before the page was drawn and goes on after that.
const ask = window.requestAnimationFrame.bind(window);
const early = new WeakSet();
let isLoading = true, running = null;

window.requestAnimationFrame = (callback) => {
  const isEarly = isLoading || early.has(running);
  if (isEarly && !isLoading && Date.now() > end) return 0;
  if (isEarly) early.add(callback);
  return ask((now) => {
    running = callback;
    try {
      callback(now);
    } finally {
      running = null;
    }
  });
};

const PATIENCE_MS = 1000;
let end = Infinity;
document.addEventListener("megaboard:drawn", () => {
  isLoading = false;
  end = Date.now() + PATIENCE_MS;
}, { once: true });
