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
    const { h, t } = board;
    const hosts = bundle.data.hosts;
    if (!hosts) return;
    if (!hosts.length) return board.fill(element);
    const names = ["rank", "login", "key", "fabric", "jump"].filter((name) => name !== "jump" || hosts.some((host) => host.jump));
    const login = (host) => `${host.user ? `${host.user}@` : ""}${host.address}:${host.port}`;
    board.fill(element, h("div", { class: "mb-scroll" }, h("table", { class: "mb-table" },
      h("caption", {}, t("wizard.hosts.caption", { count: hosts.length })),
      h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, t(`wizard.hosts.${name}`))))),
      h("tbody", {}, hosts.map((host, rank) => h("tr", {}, names.map((name) => h("td", {},
        name === "rank" ? (rank ? String(rank) : t("wizard.hosts.master")) : name === "login" ? login(host)
          : host[name] || h("span", { class: "mb-quiet" }, t("wizard.hosts.own"))))))))));
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
