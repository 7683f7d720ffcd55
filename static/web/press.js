// A press of the pointer counts for the button or the link on which it began, although new content moved that element
// before the release. Browsers give such a click to another element, and so it would be lost.
const RESTS_WITHIN_PX = 4;
let press = null;

function begin(event) {
  const element = event.button === 0 && event.target.closest("button, a[href]");
  press = element && { element, x: event.clientX, y: event.clientY };
}

function complete(event) {
  const began = press;
  press = null;
  if (!began || event.detail === 0 || began.element.contains(event.target)) return;
  if (Math.hypot(event.clientX - began.x, event.clientY - began.y) > RESTS_WITHIN_PX) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  began.element.click();
}

export function completePresses() {
  document.addEventListener("pointerdown", begin, true);
  document.addEventListener("click", complete, true);
}
