// Secrets of the ranks. The user types them, and the page never shows them again. The server answers only with their
// names.
import { fill, h } from "../lib/dom.js";
import { t } from "../lib/words.js";
import { drawProblem } from "./problems.js";
import { sendRequest, form, hiddenInput } from "./secret_form.js";

let storedNames = null;

// This is made once: a payload must not remove what the user is typing.
export function drawSecrets(element) {
  if (element.firstChild) return;
  const names = h("datalist", { id: "mb-secret-names" });
  const name = h("input.mb-typed", { type: "text", list: "mb-secret-names", spellcheck: "false",
    autocomplete: "off", placeholder: "HF_TOKEN" });
  const value = hiddenInput();
  const list = h("ul.mb-secrets", {}), status = h("div", { role: "status" });
  const keep = async () => {
    const secret = { name: name.value, value: value.value };
    value.value = "";
    const answer = await sendRequest("POST", "/api/secrets", secret);
    if (answer.names) name.value = "";
    show(answer, t("wizard.secrets.kept", { name: secret.name.trim() }));
  };
  const forget = async (secretName) => show(await sendRequest("DELETE", `/api/secrets/${encodeURIComponent(secretName)}`),
    t("wizard.secrets.forgotten", { name: secretName }));
  const show = (answer, words) => {
    if (answer.names) storedNames = answer.names;
    if (answer.common) fill(names, answer.common.map((secretName) => h("option", { value: secretName })));
    fill(list, (storedNames || []).map((secretName) => h("li", {}, h("code", {}, secretName), " ",
      h("button.mb-link", { type: "button", onclick: () => forget(secretName) },
        t("wizard.secrets.forget", { name: secretName })))));
    fill(status, answer.problems ? answer.problems.map(drawProblem) : words);
  };
  fill(element, h("section.mb-card.mb-section", {}, h("h3", {}, t("wizard.secrets")),
    h("p", {}, t("wizard.secrets.lead")), list, names,
    form(keep, h("label", {}, h("span", {}, t("wizard.secrets.name")), name),
      h("label", {}, h("span", {}, t("wizard.secrets.value")), value),
      h("button.mb-button", {}, t("wizard.secrets.keep"))), status));
  sendRequest("GET", "/api/secrets").then((answer) => show(answer, ""));
}
