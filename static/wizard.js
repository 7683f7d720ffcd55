// The wizard's side of the bundle: one JSON string from the server after every edit, handed to whoever draws.
// A drawer is Megaboard.panels[name] = (element, bundle) => {}, for the places that Python made with `place(name)`.
(() => {
  const board = (window.Megaboard = window.Megaboard || {});
  const panels = (board.panels = board.panels || {});
  const places = new Map();
  let latest = null;
  // The newest bundle that held what a step's own places show, by step.
  const known = new Map();
  let send = () => {};
  let isPressed = false, isWaiting = false;

  const step = () => document.documentElement.dataset.step || "hardware";

  // The carrier's script calls this once: its value holds the words first and bundles from then on.
  function carrier(element, trigger, props, watch) {
    send = trigger;
    places.set("summary", element.querySelector("[data-panel]"));
    take(props.value);
    watch("value", () => take(props.value));
  }

  function take(text) {
    const got = text ? JSON.parse(text) : {};
    if (got.words) Object.assign(board.words, got.words);
    const hasSettled = Boolean(got.ticket) && answered(got.ticket);
    board.draft.note(got);
    if (!got.at || (!keep(got) && !hasSettled)) return;
    drawAll();
    catchUp();
  }

  // Two edits may be answered out of order: what is older than what is on screen is dropped.
  function keep(got) {
    if (got.at <= (known.get(got.step)?.at ?? 0)) return false;
    known.set(got.step, got);
    const data = { ...latest?.data, ...got.data };
    latest = got.at > (latest?.at ?? 0) ? { ...latest, ...got, data } : { ...latest, data };
    return true;
  }

  // An edit that is answered after the next step was shown holds what the step before shows: this one is asked for.
  const isStale = () => Boolean(latest) && (known.get(step())?.draft ?? 0) < latest.draft;
  let asked = "";
  function catchUp() {
    const now = `${step()} ${latest.draft}`;
    if (!isStale() || asked === now) return;
    asked = now;
    refresh();
  }

  // Figures of the draft before are dimmed, unless others come before anybody would see it. (A transition in CSS with a
  // delay would cost every edit a layer for each place.)
  const DIMMED_MS = 250;
  const dimming = new Map();
  function markBusy() {
    const isUnderWay = !board.draft.isResting();
    mark(document.getElementById(`step-${step()}`), isUnderWay || isStale());
    // Every bundle has it, that of another step too.
    mark(places.get("summary"), isUnderWay);
  }

  function mark(place, isBusy) {
    if (!place || place.getAttribute("aria-busy") === String(isBusy)) return;
    place.setAttribute("aria-busy", String(isBusy));
    clearTimeout(dimming.get(place));
    const dim = () => place.classList.toggle("mb-stale", isBusy);
    if (isBusy) dimming.set(place, setTimeout(dim, DIMMED_MS));
    else dim();
  }

  function drawAll() {
    isWaiting = isPressed;
    if (isPressed) return;
    markBusy();
    board.fields.place(latest);
    for (const [name, element] of places) draw(name, element);
    document.dispatchEvent(new CustomEvent("megaboard:drawn", { detail: { at: latest.at } }));
  }

  // A button or row that is replaced between the two halves of a click is not clicked: what is new waits until then.
  // Sliders and text fields are Gradio's and not drawn here: dragging them is answered at once.
  // The release of the other buttons goes to the menu that they open, and never comes here.
  document.addEventListener("pointerdown", ({ button, target }) => {
    isPressed = button === 0 && Boolean(target.closest("[data-panel], .mb-problem"));
  }, true);
  for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => {
    isPressed = false;
    if (isWaiting) setTimeout(drawAll);
  }, true);

  // What is on no visible step is drawn when its step is shown: that asks for a bundle anyway.
  function draw(name, element) {
    const home = element.closest(".mb-step")?.id, isHere = !home || home === `step-${step()}`;
    if (!latest || !panels[name] || !isHere || !board.tabs.isShown(name)) return;
    const held = element.contains(document.activeElement) && document.activeElement;
    panels[name](element, latest);
    if (held && !held.isConnected) hold(element, held);
  }

  // What had the focus and was drawn anew has it again: keys go on from there.
  function hold(element, held) {
    if (element.contains(document.activeElement)) return;
    const same = (other) => other.textContent === held.textContent && other.ariaLabel === held.ariaLabel;
    [...element.querySelectorAll(held.tagName)].find(same)?.focus({ preventScroll: true });
  }

  const redraw = (name) => places.has(name) && draw(name, places.get(name));

  function mounted(element) {
    const place = element.querySelector("[data-panel]");
    places.set(place.dataset.panel, place);
    board.tabs.arrange(place.dataset.panel);
    draw(place.dataset.panel, place);
  }

  // Choices that replace each other (a key held down on the plans): one under way, and the newest after it. Gradio
  // sends every event of a script at once, and the server may finish them in another order.
  const PATIENCE_MS = 8000;
  let ticket = 0, isUnderWay = false, next = null, impatience = 0;

  function sendNewest(name, data) {
    if (isUnderWay) {
      next = [name, data];
      return;
    }
    isUnderWay = true;
    ask(name, { ...data, ticket: ++ticket });
    const mine = ticket;
    impatience = setTimeout(() => answered(mine) && refresh(), PATIENCE_MS);
  }

  // Whether nothing is under way any more.
  function answered(one) {
    // Its patience was over, and the widgets show it now: they may show less than the newest choice.
    if (one < ticket) board.draft.fetchAll();
    if (one !== ticket || !isUnderWay) return false;
    clearTimeout(impatience);
    isUnderWay = false;
    const [name, data] = next || [];
    next = null;
    if (name) sendNewest(name, data);
    return !isUnderWay;
  }

  // Another step shows other figures.
  const ask = (name, data) => send(name, { ...data, step: step() });
  const refresh = () => ask("refresh");

  document.addEventListener("megaboard:show", ({ detail }) => {
    if (detail.area !== "wizard" || !latest) return;
    markBusy();
    refresh();
  });
  document.addEventListener("megaboard:theme", () => latest && drawAll());

  // Of the page: Gradio sets the document's to the browser's.
  const lang = () => location.pathname.split("/")[1];
  const isSettled = () => !isUnderWay;
  const bundle = () => latest;
  board.wizard = { lang, carrier, take, mounted, redraw, step, send: ask, sendNewest, isSettled, markBusy, bundle };
})();
