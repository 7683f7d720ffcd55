// A problem of the draft and its fix, with a button if the server knows the edit.
import { commands } from "../lib/commands.js";
import { fill, h } from "../lib/dom.js";
import { gap, t } from "../lib/words.js";
import { sendToServer } from "./channel.js";
import { sendRequest, form, hiddenInput } from "./secret_form.js";

// Returns the warning that explains why a valid job has no figures; undefined if it has figures.
export const noFigures = ({ problems = [], summary }) => summary?.sound
  ? problems.find(({ code }) => code === "model_not_estimated" || code === "estimate_not_modelled") : undefined;

// Returns the text in place of figures: that warning, or else the text of `key`.
export const insteadOfFigures = (payload, key) => noFigures(payload)?.message ?? t(key);

// `choose` takes the place of the edits of its choices.
export function drawProblem(problem) {
  if (problem.code === "needed_for_launch")
    return h("div.mb-problem", { "data-severity": problem.severity }, t("wizard.needed"));
  return h("div.mb-problem", { "data-severity": problem.severity, "data-code": problem.code },
    h("span", {}, h("b", {}, t(`wizard.severity.${problem.severity}`)), gap(), withRunLink(problem), " "),
    h("span.mb-fix", {}, commands(problem.fix)),
    problem.unlock && unlock(problem.unlock, problem.again),
    fixButtons(problem));
}

// Returns the buttons of the edits that may fix a problem.
export const fixButtons = ({ edits, apply: words, choices, choose }) => [
  edits && [" ", apply(words, edits)],
  choices?.length > 0 && h("div.mb-choices", {},
    choices.map((choice) => choose ? action(choice.words, choose) : apply(choice.words, choice.edits)))];

// If a problem names a run of this server, the name links to the run's page.
export function withRunLink({ message, run }) {
  const offset = run ? message.indexOf(run) : -1;
  return offset < 0 ? commands(message) : [message.slice(0, offset),
    h("a", { href: `#runs/${run}`, "data-go": `runs/${run}` }, run), message.slice(offset + run.length)];
}

const action = (words, onclick) => h("button.mb-apply", { type: "button", onclick }, words);
const apply = (words, edits) => action(words, () => sendToServer("apply", { edits }));

// The form below a problem that needs a key's passphrase. `after` is called once the passphrase was sent.
export function unlock(path, after) {
  const value = hiddenInput(), status = h("div", { role: "status" });
  const send = async () => {
    const passphrase = value.value;
    value.value = "";
    const { problems } = await sendRequest("POST", "/api/passphrases", { name: path, value: passphrase });
    fill(status, (problems || []).map(drawProblem));
    if (!problems) after?.();
  };
  return form(send, h("label", {}, h("span", {}, t("wizard.unlock")), value),
    h("button.mb-button", {}, t("wizard.unlock.go")), status);
}
