// Hardware: the measured speeds of the cluster, and the buttons that store or delete them. fetch.js starts the
// measurement.
import { fill, h } from "../lib/dom.js";
import { t } from "../lib/words.js";
import { sendToServer } from "./channel.js";

export function draw(element, payload) {
  const known = payload.data.calibration;
  if (!known) return;
  const button = (kind, classes) => h("button", { type: "button", "data-calibration": kind, class: classes,
    onclick: (event) => {
      event.currentTarget.disabled = true;
      sendToServer("fetch", { kind });
    } }, t(`wizard.fetch.${kind}`));
  fill(element, h("div.mb-calibration", {},
    h("ul", {}, known.lines.map((line) => h("li", {}, line))),
    known.is_known && button("forget_calibration", "mb-tool")),
    known.waiting && h("div.mb-calibration.mb-calibration-waits", {}, h("p", {}, known.waiting),
      button("keep_speed", "mb-button mb-primary")));
}
