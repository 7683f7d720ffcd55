// Launch: check the nodes, confirm host keys, start. The server's desk decides; this shows it and asks it.
import { commands } from "../lib/commands.js";
import { fill, h, keepFocus, table } from "../lib/dom.js";
import { gap, t } from "../lib/words.js";
import { go } from "../web/shell.js";
import { currentStep, sendToServer } from "./channel.js";
import { goTo } from "./fields.js";
import { hostKeys } from "./host_keys.js";
import { drawProblem, unlock, withRunLink } from "./problems.js";
import { todoList } from "./review.js";

// `request`: what this page asked of the server last, until it is done.
let request = null, clock = null, watched = 0, accepted = null;

export function draw(element, bundle) {
  const desk = bundle.data.launch;
  if (!desk || currentStep() !== "launch") return;
  const isBusy = ["checking", "copying", "launching"].includes(desk.phase);
  // Somebody else began, or this page was loaded again meanwhile: look on.
  if (isBusy && !request && watched !== desk.version) {
    watched = desk.version;
    sendToServer("desk", { act: "watch" });
  }
  if (desk.phase === "launched" && request === "launch") {
    request = null;
    go(`runs/${desk.run}`);
  }
  if (!isBusy) request = null;
  fill(element, h("section.mb-card.mb-section", {},
    h("div.mb-desk", {}, checkButton(desk, isBusy), launchButton(desk, isBusy),
      queueButton(desk, isBusy),
      h("p.mb-desk-words", { role: "status" }, sentence(desk, isBusy))),
    desk.same && desk.warnings > 0 && warnings(element, bundle),
    (bundle.refusal || []).map((problem) => drawProblem(problem)),
    desk.problems.map((problem) => drawProblem(problem)),
    desk.copy && copyOffer(desk, isBusy),
    !desk.complete && todoList(bundle, "missing", "error"),
    h("p.mb-quiet", {}, whoIsTold(desk.told))),
    desk.keys.length > 0 && hostKeys(desk.keys, () => accept(desk), isBusy), desk.checks && checksTable(desk));
  tick(element, desk, isBusy);
}

function checkButton(desk, isBusy) {
  return button("check", t(desk.phase === "checked" ? "wizard.launch.check_again" : "wizard.launch.check"),
    !desk.complete || isBusy, !desk.ready && !desk.keys.length);
}

function launchButton(desk, isBusy) {
  const isOpen = desk.ready && (!desk.warnings || accepted === desk.version);
  return button("launch", t("wizard.launch.go", { name: desk.name }), !isOpen || isBusy, isOpen);
}

// Whoever launches or queues in spite of warnings has said so, for this very check.
function warnings(element, bundle) {
  const desk = bundle.data.launch;
  const box = h("input", { type: "checkbox", "data-act": "accept_warnings", checked: accepted === desk.version,
    onchange: () => {
      accepted = box.checked ? desk.version : null;
      keepFocus(element, () => draw(element, bundle));
    } });
  return h("label.mb-accept", {}, box, " ", t("wizard.launch.accept_warnings", { count: desk.warnings }));
}

// Needs no green check: the nodes are busy with another run, and are checked when this one's turn comes.
function queueButton(desk, isBusy) {
  const isQueued = desk.phase === "queued" && desk.same;
  const isOpen = !desk.same || !desk.warnings || accepted === desk.version;
  return button("queue", t("wizard.launch.queue"), !desk.complete || isBusy || isQueued || !isOpen, false);
}

const whoIsTold = (places) => places.length
  ? t("wizard.launch.told", { to: places.join(", ") }) : commands(t("wizard.launch.untold"));

// What node 0 has and others lack; nothing is copied unless somebody says so.
function copyOffer(desk, isBusy) {
  return h("div.mb-desk", {}, button("copy", t("wizard.launch.copy"), isBusy, false),
    h("p.mb-desk-words", {}, desk.copy, h("br"), h("small.mb-quiet", {},
      t("wizard.launch.copy.lead"))));
}

function button(act, label, isOff, isPrimary) {
  return h("button", { type: "button", class: `mb-button${isPrimary ? " mb-primary" : ""}`, "data-act": act,
    disabled: isOff, onclick: () => ask(act, { accepted }) }, label);
}

function ask(act, more = {}) {
  request = act;
  for (const one of document.querySelectorAll("[data-act]")) one.disabled = true;
  sendToServer("desk", { act, ...more });
}

const accept = (desk) => ask("accept", { fingerprints: desk.keys.map((key) => key.fingerprint) });

// Never a button that is shut without the reason beside it.
function sentence(desk, isBusy) {
  const seconds = h("span", { "data-seconds": "", "aria-hidden": "true" });
  if (isBusy) return [h("span.mb-spinner", { "aria-hidden": "true" }),
    t(`wizard.launch.${desk.phase}`, { count: desk.nodes, done: desk.copied[0], total: desk.copied[1] }), " ", seconds];
  if (!desk.complete) return t("wizard.launch.incomplete");
  if (desk.ready && desk.warnings) return h("span.mb-warn", {}, t("wizard.launch.ready_warnings"));
  if (desk.ready) return h("span.mb-good", {}, t("wizard.launch.ready"));
  const place = `runs/${desk.run}`;
  if (desk.phase === "launched")
    return [t("wizard.launch.launched"), " ", h("a", { href: `#${place}`, "data-go": place }, desk.run)];
  if (desk.phase === "queued" && desk.same)
    return [t("wizard.launch.queued"), " ", h("a", { href: `#${place}`, "data-go": place }, desk.run)];
  if (desk.phase === "checked" && !desk.same) return t("wizard.launch.changed");
  if (desk.keys.length) return t("wizard.launch.keys_wait");
  if (desk.phase === "checked") return h("span.mb-bad", {}, t("wizard.launch.red"));
  return t("wizard.launch.begin", { count: desk.nodes });
}

function tick(element, desk, isBusy) {
  clearInterval(clock);
  if (!isBusy) return;
  const begun = Date.now() - 1000 * desk.elapsed_s;
  const show = () => {
    const place = element.querySelector("[data-seconds]");
    if (place) place.textContent = `${Math.round((Date.now() - begun) / 1000)} s`;
    else clearInterval(clock);
  };
  clock = setInterval(show, 1000);
  show();
}

function checksTable(desk) {
  const sign = { ok: "✓", warning: "!", failure: "✕", skipped: "–" };
  const { nodes, rows, findings } = desk.checks;
  const named = (node, rank) => h("th", { scope: "col", title: node },
    h("small", {}, t("wizard.checks.node", { rank })), node);
  const cell = (status) => h("td", { "data-status": status },
    h("span", { "aria-hidden": "true" }, sign[status]), " ", t(`check.status.${status}`));
  return h("section.mb-card.mb-section", {}, h("h3", {}, t("wizard.checks")), findings.map(drawFinding),
    table("mb-table mb-checks", [t("wizard.checks.check"), ...nodes.map(named)],
      rows.map((row) => [row.name, ...row.cells.map(cell)])),
    rows.some((row) => row.cells.includes("skipped")) && h("p.mb-quiet", {}, t("wizard.checks.skipped")));
}

function drawFinding(finding) {
  const open = () => goTo(finding.at, finding.step);
  return h("div.mb-problem", { "data-severity": finding.severity },
    h("b", {}, t("wizard.checks.finding", finding)), gap(), withRunLink(finding), gap(),
    h("span.mb-fix", {}, commands(finding.fix)),
    finding.unlock ? unlock(finding.unlock, () => ask("check"))
      : finding.at && h("button.mb-apply", { type: "button", onclick: open }, finding.label));
}
