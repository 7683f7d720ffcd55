// The wizard draws the newest payload of the server in the panels that Python made with `place(name)`.
import { keepFocus } from "../lib/dom.js";
import { addWords } from "../lib/words.js";
import { connect, currentStep, isStale, keep, latestPayload, refresh } from "./channel.js";
import { draw as drawCalibration } from "./calibration.js";
import { answered } from "./choices.js";
import { draw as drawContinuing } from "./continuing.js";
import { isResting, note, onRestChange } from "./draft.js";
import { dataPreviewPanels } from "./data_preview.js";
import { datasetPanels } from "./dataset_info.js";
import { fetchPanels } from "./fetch.js";
import { placeProblems } from "./fields.js";
import { drawClusters, drawHosts, drawModel } from "./hardware.js";
import "./help.js";
import { draw as drawLaunch } from "./launch.js";
import { draw as drawMemory } from "./memory.js";
import { draw as drawPareto } from "./pareto.js";
import { draw as drawPlans } from "./plan.js";
import { draw as drawRanks } from "./ranks.js";
import { draw as drawReview } from "./review.js";
import { drawSecrets } from "./secrets.js";
import { drawOwnClusters, drawStart } from "./start.js";
import { draw as drawSteps } from "./steps.js";
import { draw as drawStrategies } from "./strategies.js";
import { draw as drawSummary } from "./summary.js";
import * as tabs from "./tabs.js";
import { draw as drawTime } from "./time.js";
import { draw as drawSchedule } from "./timeline.js";

// Name of a panel -> its function (element, payload) that draws it.
export const panels = {
  ...dataPreviewPanels, ...datasetPanels, ...fetchPanels, calibration: drawCalibration, clusters: drawClusters, continuing: drawContinuing, hosts: drawHosts,
  launch: drawLaunch, memory: drawMemory, model: drawModel, own_clusters: drawOwnClusters, pareto: drawPareto,
  plans: drawPlans, ranks: drawRanks, review: drawReview, schedule: drawSchedule, secrets: drawSecrets, start: drawStart,
  steps: drawSteps, strategies: drawStrategies, summary: drawSummary, time: drawTime,
};
const places = new Map();
let isPressed = false, isWaiting = false;

// The script of the component that carries payloads calls this once. Its first value holds the texts.
export function carrier(element, trigger, props, watch) {
  connect(trigger);
  places.set("summary", element.querySelector("[data-panel]"));
  take(props.value);
  watch("value", () => take(props.value));
}

export function take(text) {
  const payload = text ? JSON.parse(text) : {};
  if (payload.words) addWords(payload.words);
  const hasSettled = Boolean(payload.ticket) && answered(payload.ticket);
  note(payload);
  if (!payload.at || (!keep(payload) && !hasSettled)) return;
  drawAll();
  catchUp();
}

// Requests the data that the step on screen lacks, once for each step and version, if the newest payload is of another
// step.
let requested = "";
function catchUp() {
  const question = `${currentStep()} ${latestPayload().draft}`;
  if (!isStale() || requested === question) return;
  requested = question;
  refresh();
}

// Dims figures of an older draft, unless newer ones come before the user would see it. (A transition in CSS with a
// delay would cost every edit a layer for each panel.)
const DIMMED_MS = 250;
const dimming = new Map();
function markBusy() {
  mark(document.getElementById(`step-${currentStep()}`), !isResting() || isStale());
  // Every payload has the summary, also that of another step.
  mark(places.get("summary"), !isResting());
}
onRestChange(markBusy);

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
  placeProblems(latestPayload());
  for (const [name, element] of places) draw(name, element);
  document.dispatchEvent(new CustomEvent("megaboard:drawn", { detail: { at: latestPayload().at } }));
}

// If a button or row is replaced between press and release, the browser sends no click. So a new payload waits for the
// release. Gradio draws its own sliders and text fields, and the server answers them during a drag. The release of the
// other mouse buttons goes to the menu that they open and never comes here.
document.addEventListener("pointerdown", ({ button, target }) => {
  isPressed = button === 0 && target instanceof Element && Boolean(target.closest("[data-panel], .mb-problem"));
}, true);
for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => {
  isPressed = false;
  if (isWaiting) setTimeout(drawAll);
}, true);

// A panel on a hidden step is drawn when its step is shown. The step then requests a payload anyway.
function draw(name, element) {
  const home = element.closest(".mb-step")?.id, isHere = !home || home === `step-${currentStep()}`;
  if (!latestPayload() || !panels[name] || !isHere || !tabs.isShown(name)) return;
  keepFocus(element, () => panels[name](element, latestPayload()));
}

const redraw = (name) => places.has(name) && draw(name, places.get(name));

// The scripts of `place(name)` and `tabs(...)` call these when Gradio has mounted the component.
export function mounted(element) {
  const place = element.querySelector("[data-panel]");
  places.set(place.dataset.panel, place);
  tabs.arrange(place.dataset.panel);
  draw(place.dataset.panel, place);
}
export const mountedTabs = (element) => tabs.mount(element, redraw);

document.addEventListener("megaboard:show", ({ detail }) => {
  if (detail.area !== "wizard" || !latestPayload()) return;
  markBusy();
  refresh();
});
document.addEventListener("megaboard:theme", () => latestPayload() && drawAll());
