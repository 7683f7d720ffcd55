// The form "Why not TP=8 PP=3?". The server knows the rules and answers; the user can choose a plan that it offers.
import { fill, h } from "../lib/dom.js";
import { lang, t } from "../lib/words.js";
import { latestBundle, sendToServer } from "./channel.js";

// What the answer on screen was about: with other plans it holds no longer.
let answered = null, clear = () => {};
const plansNow = () => JSON.stringify([latestBundle()?.data.plans?.why, latestBundle()?.data.plans?.count]);

export function whyNot() {
  const answer = h("div.mb-plans-answer", { "aria-live": "polite" });
  const field = h("input.mb-plans-sizes", { type: "text", maxlength: "80", placeholder: "TP=8 PP=3",
    "aria-label": t("wizard.plan.ask.label"), autocomplete: "off", spellcheck: "false" });
  clear = () => fill(answer);
  const send = async (event) => {
    event.preventDefault();
    const query = new URLSearchParams({ sizes: field.value, lang: lang() });
    try {
      const got = await fetch(`/api/why-not?${query}`);
      if (!got.ok) throw new Error(got.statusText);
      const { words, choose } = await got.json();
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
