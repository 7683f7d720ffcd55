// The badge of a state. It always has words; the sign and the colour repeat them.
import { attribute, h, text } from "../lib/dom.js";
import { w } from "../lib/words.js";

const SIGNS = {
  queued: "◌", preflight: "◌", pending: "◌", starting: "◔", running: "●", stopping: "◑", stopped: "■",
  finished: "✓", failed: "✕", lost: "?", broken: "!", unreachable: "!", unseen: "?",
  watched: "◉", unwatched: "○",
};

// `kind` is the group of the state in the catalogue's keys.
export function badge(kind, state) {
  const node = h("span.mbm-badge", {}, h("span.mbm-sign", { "aria-hidden": "true" }), h("span"));
  setBadge(node, kind, state);
  return node;
}

export function setBadge(node, kind, state) {
  attribute(node, "data-state", state);
  text(node.firstChild, SIGNS[state] ?? "");
  text(node.lastChild, w(`${kind}.${state}`));
}
