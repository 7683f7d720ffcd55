// Hardware: what was measured on the cluster, and the buttons that keep or forget it. fetch.js starts the measurement.
(() => {
  const board = (window.Megaboard = window.Megaboard || {});

  (board.panels = board.panels || {}).calibration = (element, bundle) => {
    const { h, t } = board;
    const known = bundle.data.calibration;
    if (!known) return;
    const button = (kind, isPrimary) => h("button", { type: "button", "data-calibration": kind,
      class: `mb-button${isPrimary ? " mb-primary" : ""}`, onclick: (event) => {
        event.currentTarget.disabled = true;
        board.wizard.send("fetch", { kind });
      } }, t(`wizard.fetch.${kind}`));
    const focused = element.contains(document.activeElement) ? document.activeElement.dataset.calibration : null;
    board.fill(element,
      known.waiting && h("div", { class: "mb-desk mb-calibration-waits" }, h("p", {}, known.waiting), button("keep_speed", true)),
      h("ul", { class: "mb-calibration" }, known.lines.map((line) => h("li", {}, line))),
      known.is_known && h("div", { class: "mb-desk" }, button("forget_calibration", false)));
    if (focused) element.querySelector(`[data-calibration="${focused}"]`)?.focus();
  };
})();
