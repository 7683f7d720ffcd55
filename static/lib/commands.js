// Commands that a user copies. The catalogue writes them between backticks.
import { h } from "./dom.js";
import { t } from "./words.js";

const LONG = 20, SHOWN_MS = 1600;

// Returns the text as children, with each command as code. A long command has a button that copies it.
export const commands = (text) => text.split("`").map((part, index) => index % 2 === 0 ? part
  : h("span.mb-command", {}, h("code", {}, part), part.length > LONG && copyButton(part)));

// Writes the text if it differs. Its commands are code without a button.
export function setCommands(node, text) {
  if (node.textContent === text.replaceAll("`", "")) return;
  node.replaceChildren(...text.split("`").map((part, index) => index % 2 ? h("code", {}, part) : part));
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
