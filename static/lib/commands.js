// Commands that a user copies. The catalogue writes them between backticks.
import { fill, h } from "./dom.js";
import { t } from "./words.js";

const LONG = 20, SHOWN_MS = 1600;

// Returns the text as children, with each command as code. A long command has a button that copies it.
export function commands(text) {
  const parts = text.split("`");
  const markAfter = (index) => parts[index + 1]?.match(/^[.,;:)。，；：）]*/)[0] ?? "";
  return parts.map((part, index) => index % 2 ? command(part, markAfter(index)) : part.slice(index && markAfter(index - 1).length));
}

// `mark` is the punctuation after the command: it stands before the button.
export const command = (text, mark = "") => h("span.mb-command", {}, h("code", {}, text), mark,
  text.length > LONG && copyButton(text));

// Element -> its text with backticks.
const written = new WeakMap();

// Writes the text as `commands` does, if it differs. So a poll without changes keeps the selection and the buttons.
export function setCommands(node, text) {
  const words = String(text ?? "");
  if (written.get(node) === words) return;
  written.set(node, words);
  fill(node, commands(words));
}

export function copyButton(text) {
  const button = h("button.mb-tool", { type: "button" }, t("wizard.copy"));
  button.addEventListener("click", async () => {
    const isDone = await copy(text);
    button.textContent = t(isDone ? "wizard.copied" : "wizard.copy_failed");
    setTimeout(() => { button.textContent = t("wizard.copy"); }, SHOWN_MS);
  });
  return button;
}

// Browsers have navigator.clipboard on https and localhost only; a page over plain http uses the old command.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { style: { position: "fixed", opacity: 0 } });
    area.value = text;
    document.body.append(area);
    area.select();
    const isDone = document.execCommand("copy");
    area.remove();
    return isDone;
  }
}
