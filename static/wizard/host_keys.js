// Host keys of nodes that the user has not confirmed yet.
import { command } from "../lib/commands.js";
import { h, table } from "../lib/dom.js";
import { t } from "../lib/words.js";

// `accept` is called after the user has compared them.
export function hostKeys(keys, accept, isBusy = false) {
  const head = ["host", "type", "fingerprint", "command"].map((name) => t(`wizard.keys.${name}`));
  const rows = keys.map((key) =>
    [`${key.host}:${key.port}`, key.type, h("code", {}, key.fingerprint), command(key.command)]);
  return h("section.mb-card.mb-section", {}, h("h3", {}, t("wizard.keys")),
    h("p", {}, t("wizard.keys.lead")),
    table("mb-table mb-keys", head, rows),
    h("div.mb-actions", {}, h("button.mb-button.mb-primary", { type: "button", "data-act": "accept",
      disabled: isBusy, onclick: accept }, t("wizard.keys.accept", { count: keys.length }))));
}
