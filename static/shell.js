// The page frame: which area and step are shown, the theme, and what happens when the session is over.
// Runs before anything is painted. The location's hash names the place: #plan is a step, #runs... the monitor.
(() => {
  const STEPS = ["hardware", "model", "training", "plan", "review", "launch"];
  const THEME_KEY = "megaboard-theme";
  const PLACE_KEY = "megaboard-place";
  const root = document.documentElement;

  function place() {
    const hash = decodeURIComponent(location.hash.slice(1));
    if (hash === "runs" || hash.startsWith("runs/")) return { area: "monitor", step: root.dataset.step || STEPS[0] };
    return { area: "wizard", step: STEPS.includes(hash) ? hash : STEPS[0] };
  }

  function show() {
    const { area, step } = place();
    root.dataset.area = area;
    root.dataset.step = step;
    mark();
    document.dispatchEvent(new CustomEvent("megaboard:show", { detail: { area, step } }));
  }

  // Gradio renders the links after this script ran, and again when it re-renders: mark whatever is there now.
  function mark() {
    const { area, step } = root.dataset;
    const reached = STEPS.indexOf(step);
    for (const link of document.querySelectorAll(".mb-areas a")) current(link, link.dataset.area === area && "page");
    for (const link of document.querySelectorAll(".mb-steps a")) {
      current(link, link.dataset.step === step && "step");
      link.classList.toggle("mb-past", STEPS.indexOf(link.dataset.step) < reached);
    }
    for (const link of document.querySelectorAll("a[data-language]"))
      link.href = `/?lang=${link.dataset.language}${location.hash}`;
    for (const link of document.querySelectorAll('.mb-areas a[data-area="wizard"]')) link.dataset.go = step;
    for (const button of document.querySelectorAll("[data-theme-toggle]"))
      button.setAttribute("aria-pressed", String(isDark()));
  }

  function current(link, value) {
    if (value) link.setAttribute("aria-current", value);
    else link.removeAttribute("aria-current");
  }

  function go(target) {
    if (location.hash !== `#${target}`) {
      // Not location.hash: the page's <base> would turn it into another address.
      history.pushState(null, "", `${location.pathname}${location.search}#${target}`);
      show();
    }
    focusHeading();
  }

  function focusHeading() {
    const { area, step } = root.dataset;
    const heading = area === "wizard"
      ? document.getElementById(`heading-${step}`)
      : document.querySelector("#area-monitor h2");
    if (!heading) return;
    heading.setAttribute("tabindex", "-1");
    window.scrollTo(0, 0);
    heading.focus({ preventScroll: true });
  }

  function isDark() {
    const asked = localStorage.getItem(THEME_KEY);
    return asked ? asked === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function setTheme(dark) {
    localStorage.setItem(THEME_KEY, dark ? "dark" : "light");
    askGradioFor(dark);
    document.body.classList.toggle("dark", dark);
    mark();
    document.dispatchEvent(new CustomEvent("megaboard:theme", { detail: { dark } }));
  }

  // Gradio takes its theme from the address once, when it starts.
  function askGradioFor(dark) {
    const address = new URL(location.href);
    address.searchParams.set("__theme", dark ? "dark" : "light");
    history.replaceState(history.state, "", address);
  }

  function onClick(event) {
    const target = event.target.closest("[data-go], [data-theme-toggle], [data-skip]");
    if (!target || event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    if ("go" in target.dataset) go(target.dataset.go);
    else if ("skip" in target.dataset) focusHeading();
    else setTheme(!isDark());
  }

  const plainFetch = window.fetch;
  window.fetch = async (...request) => {
    const answer = await plainFetch(...request);
    if (answer.status === 401) logIn();
    return answer;
  };

  // The place is kept over the log-in, which has no room for it: a server that was restarted asks for one.
  function logIn() {
    sessionStorage.setItem(PLACE_KEY, location.hash);
    location.assign(`/login?lang=${location.pathname.split("/")[1]}`);
  }

  function returnToPlace() {
    const kept = sessionStorage.getItem(PLACE_KEY);
    sessionStorage.removeItem(PLACE_KEY);
    if (kept && !location.hash) history.replaceState(null, "", `${location.pathname}${location.search}${kept}`);
  }

  window.Megaboard = Object.assign(window.Megaboard || {}, { go, steps: STEPS });
  returnToPlace();
  // Other tabs may wait at the log-in (login.js).
  new BroadcastChannel("megaboard").postMessage("logged in");
  if (localStorage.getItem(THEME_KEY)) askGradioFor(isDark());
  show();
  document.addEventListener("click", onClick);
  window.addEventListener("popstate", show);
  window.addEventListener("hashchange", show);
  document.addEventListener("DOMContentLoaded", () => {
    let waiting = false;
    new MutationObserver((changes) => {
      const isOurs = (node) => node.nodeType === 1 && node.querySelector?.("[data-go], [data-theme-toggle]");
      if (waiting || !changes.some((change) => [...change.addedNodes].some(isOurs))) return;
      waiting = true;
      requestAnimationFrame(() => { waiting = false; mark(); });
    }).observe(document.body, { childList: true, subtree: true });
  });
})();
