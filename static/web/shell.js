// The page frame: the area and the step on screen, the theme, and the log-in after the session has ended. The hash of
// the address names the view: #plan is a step of the wizard, #runs is the monitor.
import { completePresses } from "./press.js";
import { watchRequests } from "./requests.js";

export const steps = ["hardware", "model", "training", "plan", "review", "launch"];
const THEME_KEY = "megaboard-theme";
const PLACE_KEY = "megaboard-place";
const root = document.documentElement;

function place() {
  const hash = decodeURIComponent(location.hash.slice(1));
  if (hash === "runs" || hash.startsWith("runs/")) return { area: "monitor", step: root.dataset.step || steps[0] };
  return { area: "wizard", step: steps.includes(hash) ? hash : steps[0] };
}

function show() {
  const { area, step } = place();
  root.dataset.area = area;
  root.dataset.step = step;
  mark();
  document.dispatchEvent(new CustomEvent("megaboard:show", { detail: { area, step } }));
}

// Gradio renders the links after this script has run, and again at each re-render. So this marks the links that exist
// now.
function mark() {
  const { area, step } = root.dataset;
  const reached = steps.indexOf(step);
  for (const link of document.querySelectorAll(".mb-areas a")) current(link, link.dataset.area === area && "page");
  for (const link of document.querySelectorAll(".mb-steps a")) {
    current(link, link.dataset.step === step && "step");
    link.classList.toggle("mb-past", steps.indexOf(link.dataset.step) < reached);
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

export function go(target) {
  if (location.hash !== `#${target}`) {
    // location.hash does not work here: the page's <base> would turn it into another address.
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
  const stored = localStorage.getItem(THEME_KEY);
  return stored ? stored === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function setTheme(dark) {
  localStorage.setItem(THEME_KEY, dark ? "dark" : "light");
  askGradioFor(dark);
  document.body.classList.toggle("dark", dark);
  mark();
  document.dispatchEvent(new CustomEvent("megaboard:theme", { detail: { dark } }));
}

// Gradio reads its theme from the address once, at its start.
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

watchRequests(() => ({
  answered({ status }) {
    if (status === 401) logIn();
  },
}));

// The view is stored in the tab during the log-in, because the log-in page cannot carry it.
function logIn() {
  sessionStorage.setItem(PLACE_KEY, location.hash);
  location.assign(`/login?lang=${location.pathname.split("/")[1]}`);
}

function returnToPlace() {
  const view = sessionStorage.getItem(PLACE_KEY);
  sessionStorage.removeItem(PLACE_KEY);
  if (view && !location.hash) history.replaceState(null, "", `${location.pathname}${location.search}${view}`);
}

returnToPlace();
// Other tabs may wait at the log-in (login.js).
new BroadcastChannel("megaboard").postMessage("logged in");
if (localStorage.getItem(THEME_KEY)) askGradioFor(isDark());
show();
completePresses();
document.addEventListener("click", onClick);
window.addEventListener("popstate", show);
window.addEventListener("hashchange", show);
let isWaiting = false;
new MutationObserver((changes) => {
  const isOurs = (node) => node.nodeType === 1 && node.querySelector?.("[data-go], [data-theme-toggle]");
  if (isWaiting || !changes.some((change) => [...change.addedNodes].some(isOurs))) return;
  isWaiting = true;
  requestAnimationFrame(() => { isWaiting = false; mark(); });
}).observe(document.body, { childList: true, subtree: true });
