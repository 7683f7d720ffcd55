// Hardware: clusters to start from, and the nodes as the server has parsed the lines above. Model: its card.
import { fill, h, table } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { t } from "../lib/words.js";
import { sendToServer } from "./channel.js";

export function drawClusters(element, payload) {
  const chips = payload.data.clusters;
  if (!chips) return;
  fill(element, h("div.mb-chips", { role: "group", "aria-label": t("wizard.clusters") },
    h("span.mb-quiet", {}, t("wizard.clusters")), chips.map((chip) =>
      h("button", { type: "button", "data-key": chip.key, "aria-pressed": String(chip.on),
        onclick: () => sendToServer("apply", { cluster: chip.key }) }, chip.name))));
}

export function drawHosts(element, payload) {
  const hosts = payload.data.hosts;
  if (!hosts) return;
  if (!hosts.length) return element.replaceChildren();
  const hasJumpHost = hosts.some((host) => host.jump);
  const names = ["rank", "login", "key", "fabric", ...(hasJumpHost ? ["jump"] : [])];
  const cells = {
    rank: (host, rank) => rank ? String(rank) : t("wizard.hosts.master"),
    login: (host) => `${host.user ? `${host.user}@` : ""}${host.address}:${host.port}`,
    key: (host) => host.key || h("span.mb-quiet", {}, t("wizard.hosts.own")),
    fabric: (host) => host.fabric,
    jump: (host) => host.jump || "",
  };
  const rows = hosts.map((host, rank) => names.map((name) => cells[name](host, rank)));
  const caption = t("wizard.hosts.caption", { count: hosts.length });
  fill(element, table("mb-table", names.map((name) => t(`wizard.hosts.${name}`)), rows, caption));
  // With many nodes, the table scrolls in its box.
  element.firstChild.tabIndex = 0;
}

export function drawModel(element, payload) {
  const model = payload.data.model;
  if (!model) return fill(element, h("p.mb-quiet", {}, t("wizard.model.unread")));
  fill(element, h("div.mb-model", {},
    h("div.mb-model-name", {}, h("strong", {}, model.name || t("wizard.model.unnamed")),
      model.type && h("code", {}, model.type),
      model.parameters !== null && h("span", {}, t("wizard.model.parameters", { count: count(model.parameters) }))),
    h("dl", {}, model.facts.map(([name, value]) => h(typeof value === "string" ? "div.mb-wide" : "div", {},
      h("dt", {}, t(`wizard.model.${name}`)), h("dd", {}, value.toLocaleString("en-US")))))));
}
