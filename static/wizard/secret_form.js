// A form for a secret that is typed and never shown again, and the request that sends it. The page keeps no copy.
import { h } from "../lib/dom.js";
import { lang, t } from "../lib/words.js";

export const hiddenInput = () => h("input.mb-typed", { type: "password", autocomplete: "new-password",
  spellcheck: "false" });

export function form(submit, ...parts) {
  const send = (event) => { event.preventDefault(); submit(); };
  return h("form.mb-actions.mb-secret-form", { autocomplete: "off", onsubmit: send }, ...parts);
}

export async function sendRequest(method, path, body) {
  const failed = { problems: [{ severity: "error", message: t("wizard.secrets.failed"), fix: "" }] };
  const headers = body && { "content-type": "application/json" };
  try {
    const answer = await fetch(`${path}?lang=${lang()}`,
      { method, headers, body: body && JSON.stringify(body), cache: "no-store" });
    return answer.ok || answer.status === 422 ? await answer.json() : failed;
  } catch {
    return failed;
  }
}
