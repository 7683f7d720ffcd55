// Launch: check the nodes, confirm host keys, start. The server's launch session decides; this module shows its state.
import { commands } from "../lib/commands.js";
import { fill, h, keepFocus, table } from "../lib/dom.js";
import { gap, t } from "../lib/words.js";
import { go } from "../web/shell.js";
import { currentStep, sendToServer } from "./channel.js";
import { goTo } from "./fields.js";
import { hostKeys } from "./host_keys.js";
import { drawProblem, fixButtons, unlock, withRunLink } from "./problems.js";
import { todoList } from "./review.js";

// `request` is the last action that this page requested; null after it is done.
let request = null, clock = null, watched = 0, accepted = null;

export function draw(element, payload) {
  const session = payload.data.launch;
  if (!session || currentStep() !== "launch") return;
  const isBusy = ["checking", "copying", "pulling", "downloading", "installing", "launching"].includes(session.phase);
  // Another page started this work, or this page was reloaded: this page watches the work.
  if (isBusy && !request && watched !== session.version) {
    watched = session.version;
    sendToServer("launch", { act: "watch" });
  }
  if (session.phase === "launched" && request === "launch") {
    request = null;
    go(`runs/${session.run}`);
  }
  if (!isBusy) request = null;
  fill(element, h("section.mb-card.mb-section", {},
    h("div.mb-actions", {}, checkButton(session, isBusy), launchButton(session, isBusy),
      queueButton(session, isBusy),
      h("p.mb-actions-words", { role: "status" }, sentence(session, isBusy))),
    session.scheduler && slurm(session.scheduler),
    session.same && session.warnings > 0 && warnings(element, payload),
    (payload.refusal || []).map((problem) => drawProblem(problem)),
    session.problems.map((problem) => drawProblem(problem)),
    session.copy && copyOffer(session, isBusy),
    session.pull && pullOffer(isBusy),
    session.download && downloadOffer(session, isBusy),
    session.install && installOffer(session, isBusy),
    !session.complete && todoList(payload, "missing", "error"),
    h("p.mb-quiet", {}, whoIsTold(session.told))),
    session.keys.length > 0 && hostKeys(session.keys, () => accept(session), isBusy), session.checks && checksTable(session));
  tick(element, session, isBusy);
}

function checkButton(session, isBusy) {
  return button("check", session.phase === "checked" ? t("wizard.launch.check_again") : words(session, "check"),
    !session.complete || isBusy, !session.ready && !session.keys.length);
}

function launchButton(session, isBusy) {
  const isOpen = session.ready && (!session.warnings || accepted === session.version);
  return button("launch", t("wizard.launch.go", { name: session.name }), !isOpen || isBusy, isOpen);
}

// What Slurm said of the request when it was checked, and of the job that it got.
function slurm({ start, said }) {
  if (said) return h("p.mb-slurm", {}, said);
  return start ? h("p.mb-slurm", {}, t("wizard.launch.slurm_start", { start })) : null;
}

// The user must accept the warnings of this check before a launch or before the run is queued.
function warnings(element, payload) {
  const session = payload.data.launch;
  const box = h("input", { type: "checkbox", "data-act": "accept_warnings", checked: accepted === session.version,
    onchange: () => {
      accepted = box.checked ? session.version : null;
      keepFocus(element, () => draw(element, payload));
    } });
  return h("label.mb-accept", {}, box, " ", t("wizard.launch.accept_warnings", { count: session.warnings }));
}

// A queued run does not need a passed check: its nodes are checked before it starts.
function queueButton(session, isBusy) {
  const isQueued = session.phase === "queued" && session.same;
  const isOpen = !session.same || !session.warnings || accepted === session.version;
  return button("queue", t("wizard.launch.queue"), !session.complete || isBusy || isQueued || !isOpen, false);
}

const whoIsTold = (places) => places.length
  ? t("wizard.launch.told", { to: places.join(", ") }) : commands(t("wizard.launch.untold"));

// Copies the files that only node 0 has to the other nodes, after the user clicks.
function copyOffer(session, isBusy) {
  return h("div.mb-actions", {}, button("copy", t("wizard.launch.copy"), isBusy, false),
    h("p.mb-actions-words", {}, session.copy, h("br"), h("small.mb-quiet", {},
      t("wizard.launch.copy.lead"))));
}

// Pulls the container image on all nodes, after the user clicks.
function pullOffer(isBusy) {
  return h("div.mb-actions", {}, button("pull", t("wizard.launch.pull"), isBusy, false),
    h("p.mb-actions-words", {}, h("small.mb-quiet", {}, t("wizard.launch.pull.lead"))));
}

// Downloads the model from its hub to node 0 and copies it to the other nodes, after the user clicks.
function downloadOffer(session, isBusy) {
  return h("div.mb-actions", {}, button("download", t("wizard.launch.download"), isBusy, false),
    h("p.mb-actions-words", {}, session.download, h("br"), h("small.mb-quiet", {}, words(session, "download.lead"))));
}

// Makes the engine's environment on all nodes, after the user clicks. Its interpreter comes back as a fix to apply.
function installOffer(session, isBusy) {
  return h("div.mb-actions", {}, button("install", t("wizard.launch.install"), isBusy, false),
    h("p.mb-actions-words", {}, h("small.mb-quiet", {}, words(session, "install.lead"))));
}

function button(act, label, isOff, isPrimary) {
  return h("button", { type: "button", class: `mb-button${isPrimary ? " mb-primary" : ""}`, "data-act": act,
    disabled: isOff, onclick: () => send(act, { accepted }) }, label);
}

function send(act, more = {}) {
  request = act;
  for (const control of document.querySelectorAll("[data-act]")) control.disabled = true;
  sendToServer("launch", { act, ...more });
}

const accept = (session) => send("accept", { fingerprints: session.keys.map((key) => key.fingerprint) });

function progress(session) {
  const [done, total] = session.phase === "pulling" ? session.pulled : session.copied;
  return { done, total: total || "?" };
}

// Returns the reason why a button is disabled.
function sentence(session, isBusy) {
  const seconds = h("span", { "data-seconds": "", "aria-hidden": "true" });
  if (isBusy) return [h("span.mb-spinner", { "aria-hidden": "true" }),
    words(session, session.phase, { count: session.nodes, ...progress(session) }), " ", seconds];
  if (!session.complete) return t("wizard.launch.incomplete");
  if (session.ready && session.warnings) return h("span.mb-warn", {}, t("wizard.launch.ready_warnings"));
  if (session.ready) return h("span.mb-good", {}, words(session, "ready"));
  const place = `runs/${session.run}`;
  if (session.phase === "launched")
    return [t("wizard.launch.launched"), " ", h("a", { href: `#${place}`, "data-go": place }, session.run)];
  if (session.phase === "queued" && session.same)
    return [t("wizard.launch.queued"), " ", h("a", { href: `#${place}`, "data-go": place }, session.run)];
  if (session.phase === "checked" && !session.same) return t("wizard.launch.changed");
  if (session.keys.length) return t("wizard.launch.keys_wait");
  if (session.phase === "checked") return h("span.mb-bad", {}, t("wizard.launch.red"));
  return words(session, "begin", { count: session.nodes });
}

// With Slurm, the server reaches only the login node, so some sentences are others.
const OF_SLURM = ["begin", "check", "checking", "download.lead", "install.lead", "launching", "ready", "installing", "downloading"];
function words(session, name, values = {}) {
  const suffix = session.scheduler && OF_SLURM.includes(name) ? "_slurm" : "";
  return t(`wizard.launch.${name}${suffix}`, { ...values, login: session.scheduler?.login });
}

function tick(element, session, isBusy) {
  clearInterval(clock);
  if (!isBusy) return;
  const begun = Date.now() - 1000 * session.elapsed_s;
  const show = () => {
    const place = element.querySelector("[data-seconds]");
    if (place) place.textContent = `${Math.round((Date.now() - begun) / 1000)} s`;
    else clearInterval(clock);
  };
  clock = setInterval(show, 1000);
  show();
}

function checksTable(session) {
  const sign = { ok: "✓", warning: "!", failure: "✕", skipped: "–" };
  const { nodes, rows, findings } = session.checks;
  const named = (node, rank) => h("th", { scope: "col", title: node },
    h("small", {}, columnName(session, rank)), node);
  const cell = (status) => h("td", { "data-status": status },
    h("span", { "aria-hidden": "true" }, sign[status]), " ", t(`check.status.${status}`));
  return h("section.mb-card.mb-section", {}, h("h3", {}, t("wizard.checks")), findings.map(drawFinding),
    table("mb-table mb-checks", [t("wizard.checks.check"), ...nodes.map(named)],
      rows.map((row) => [row.name, ...row.cells.map(cell)])),
    rows.some((row) => row.cells.includes("skipped")) && h("p.mb-quiet", {}, t("wizard.checks.skipped")));
}

function columnName(session, rank) {
  if (session.scheduler) return t("wizard.checks.login");
  return rank < session.nodes ? t("wizard.checks.node", { rank })
    : t("wizard.checks.spare", { number: rank - session.nodes + 1 });
}

function drawFinding(finding) {
  const open = () => goTo(finding.at, finding.step);
  return h("div.mb-problem", { "data-severity": finding.severity, "data-code": finding.code },
    h("b", {}, t("wizard.checks.finding", finding)), gap(), withRunLink(finding), gap(),
    h("span.mb-fix", {}, commands(finding.fix)),
    finding.cordoned ? h("button.mb-apply", { type: "button", "data-act": "uncordon",
      onclick: () => send("uncordon", { node: finding.cordoned }) }, t("wizard.launch.uncordon", { node: finding.cordoned }))
      : finding.unlock ? unlock(finding.unlock, () => send("check"))
      : [finding.at && h("button.mb-apply", { type: "button", onclick: open }, finding.label), fixButtons(finding)]);
}
