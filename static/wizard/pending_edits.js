// Input that the server has not taken is stored in this tab during the log-in or the reload that follows, and is sent
// then. After a lost request, Gradio sends nothing more, and it reloads the page when the server is back.
import { lang } from "../lib/words.js";
import { sendToServer } from "./channel.js";

const KEY = "megaboard-unsent";
// These fields are not stored, because free text may hold a secret. The notice of a lost server tells the user.
const NOT_KEPT = ["field-environment", "field-extra"];
// The earlier values of the fields that the user has focused since the server last took everything, by element id.
const before = new Map();
let pending = JSON.parse(sessionStorage.getItem(KEY) || "null");
sessionStorage.removeItem(KEY);

// Returns the value of a field. Check boxes and choices are sent by their labels, which the server maps to values.
function shown(block) {
  const inputs = [...block.querySelectorAll("input, textarea")].filter((input) => !input.closest(".mb-beside"));
  const [first] = inputs;
  const words = inputs.filter((input) => input.checked).map((input) => input.closest("label").textContent.trim());
  if (first.type === "checkbox") return words;
  if (first.type === "radio") return words[0] ?? "";
  return first.type === "number" ? (first.value === "" ? null : Number(first.value)) : first.value;
}

function touch({ target }) {
  const block = target.closest?.('[id^="field-"]');
  if (block && !target.closest(".mb-beside") && !before.has(block.id)) before.set(block.id, shown(block));
}

// Notes that the server has taken all input.
export function taken() {
  before.clear();
  touch({ target: document.activeElement });
}

function keep() {
  const fields = { ...pending?.fields };
  for (const [id, value] of before) {
    const block = document.getElementById(id);
    if (!block || NOT_KEPT.includes(id)) continue;
    const now = shown(block);
    if (JSON.stringify(now) !== JSON.stringify(value)) fields[id] = now;
  }
  if (Object.keys(fields).length) sessionStorage.setItem(KEY, JSON.stringify({ lang: lang(), fields }));
}

// The page now shows the draft. This sends the input from before the reload.
let isAsked = false;
export function resend() {
  if (!pending || isAsked) return;
  isAsked = true;
  sendToServer("apply", { pending });
}

export const resent = () => { pending = null; };

document.addEventListener("focusin", touch, true);
window.addEventListener("pagehide", keep);
