// Secrets of the ranks: typed and never shown again. The server answers their names alone.
import { fill, h } from "../lib/dom.js";
import { t } from "../lib/words.js";
import { drawProblem } from "./problems.js";
import { ask, form, hiddenInput } from "./secret_form.js";

let kept = null;

// Made once: a bundle must not take away what is being typed.
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
    const answer = await ask("POST", "/api/secrets", secret);
    if (answer.names) name.value = "";
    show(answer, t("wizard.secrets.kept", { name: secret.name.trim() }));
  };
  const forget = async (one) => show(await ask("DELETE", `/api/secrets/${encodeURIComponent(one)}`),
    t("wizard.secrets.forgotten", { name: one }));
  const show = (answer, words) => {
    if (answer.names) kept = answer.names;
    if (answer.common) fill(names, answer.common.map((one) => h("option", { value: one })));
    fill(list, (kept || []).map((one) => h("li", {}, h("code", {}, one), " ",
      h("button.mb-link", { type: "button", onclick: () => forget(one) },
        t("wizard.secrets.forget", { name: one })))));
    fill(status, answer.problems ? answer.problems.map(drawProblem) : words);
  };
  fill(element, h("section.mb-card.mb-section", {}, h("h3", {}, t("wizard.secrets")),
    h("p", {}, t("wizard.secrets.lead")), list, names,
    form(keep, h("label", {}, h("span", {}, t("wizard.secrets.name")), name),
      h("label", {}, h("span", {}, t("wizard.secrets.value")), value),
      h("button.mb-button", {}, t("wizard.secrets.keep"))), status));
  ask("GET", "/api/secrets").then((answer) => show(answer, ""));
}
