// The form "Why not TP=8 PP=3?". The server knows the rules and answers. The user can choose a plan that the answer
// offers.
import { fill, h } from "../lib/dom.js";
import { lang, t } from "../lib/words.js";
import { latestPayload, sendToServer } from "./channel.js";

// The plans that the answer on screen is about. With other plans it is no longer valid.
let answered = null, clear = () => {};
const plansNow = () => JSON.stringify([latestPayload()?.data.plans?.why, latestPayload()?.data.plans?.count]);

export function whyNot() {
  const answer = h("div.mb-plans-answer", { "aria-live": "polite" });
  const field = h("input.mb-plans-sizes", { type: "text", maxlength: "80", placeholder: "TP=8 PP=3",
    "aria-label": t("wizard.plan.ask.label"), autocomplete: "off", spellcheck: "false" });
  clear = () => fill(answer);
  const send = async (event) => {
    event.preventDefault();
    const query = new URLSearchParams({ sizes: field.value, lang: lang() });
    try {
      const response = await fetch(`/api/why-not?${query}`);
      if (!response.ok) throw new Error(response.statusText);
      const { words, choose } = await response.json();
      fill(answer, h("p", {}, words), choose && h("button.mb-tool", { type: "button",
        onclick: ({ target }) => {
          target.disabled = true;
          sendToServer("apply", { edits: choose.edits });
        } }, choose.words));
    } catch {
      fill(answer, h("p", {}, t("wizard.plan.ask.failed")));
    }
    answered = plansNow();
  };
  return h("form.mb-plans-ask", { onsubmit: send }, h("label", {}, t("wizard.plan.ask"), field,
    t("wizard.plan.ask.mark")),
    h("button.mb-tool", { type: "submit" }, t("wizard.plan.ask.send")), answer);
}

document.addEventListener("megaboard:drawn", () => {
  if (answered === null || answered === plansNow()) return;
  answered = null;
  clear();
});
