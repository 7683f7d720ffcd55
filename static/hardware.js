// Hardware: clusters to start from, and the nodes as the lines above were understood. Model: its card.
(() => {
  const board = (window.Megaboard = window.Megaboard || {});
  const panels = (board.panels = board.panels || {});

  panels.clusters = (element, bundle) => {
    const { h, t } = board;
    const chips = bundle.data.clusters;
    if (!chips) return;
    const focused = element.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    board.fill(element, h("div", { class: "mb-chips", role: "group", "aria-label": t("wizard.clusters") },
      h("span", { class: "mb-quiet" }, t("wizard.clusters")), chips.map((chip) =>
        h("button", { type: "button", "data-key": chip.key, "aria-pressed": String(chip.on),
          onclick: () => board.wizard.send("apply", { cluster: chip.key }) }, chip.name))));
    if (focused) element.querySelector(`[data-key="${focused}"]`)?.focus();
  };

  panels.hosts = (element, bundle) => {
    const { h, t, table } = board;
    const hosts = bundle.data.hosts;
    if (!hosts) return;
    if (!hosts.length) return element.replaceChildren();
    const hasGateway = hosts.some((host) => host.jump);
    const names = ["rank", "login", "key", "fabric", ...(hasGateway ? ["jump"] : [])];
    const cells = {
      rank: (host, rank) => rank ? String(rank) : t("wizard.hosts.master"),
      login: (host) => `${host.user ? `${host.user}@` : ""}${host.address}:${host.port}`,
      key: (host) => host.key || h("span", { class: "mb-quiet" }, t("wizard.hosts.own")),
      fabric: (host) => host.fabric,
      jump: (host) => host.jump || "",
    };
    const rows = hosts.map((host, rank) => names.map((name) => cells[name](host, rank)));
    const caption = t("wizard.hosts.caption", { count: hosts.length });
    board.fill(element, table("mb-table", names.map((name) => t(`wizard.hosts.${name}`)), rows, caption));
  };

  panels.model = (element, bundle) => {
    const { h, t, count } = board;
    const model = bundle.data.model;
    if (!model) return board.fill(element, h("p", { class: "mb-quiet" }, t("wizard.model.unread")));
    board.fill(element, h("div", { class: "mb-model" },
      h("div", { class: "mb-model-name" }, h("strong", {}, model.name || t("wizard.model.unnamed")),
        model.type && h("code", {}, model.type),
        h("span", {}, t("wizard.model.parameters", { count: count(model.parameters) }))),
      h("dl", {}, model.facts.map(([name, value]) => h("div", {}, h("dt", {}, t(`wizard.model.${name}`)),
        h("dd", {}, value.toLocaleString("en-US")))))));
  };
})();
