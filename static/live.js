// Small tools of the monitor's scripts: elements kept and updated in place, numbers and times in the page's language.
(() => {
  const { h, t, words } = window.Megaboard;
  let locale = "en";

  function setWords(lang, catalogue) {
    Object.assign(words, catalogue);
    locale = lang === "zh" ? "zh-CN" : "en-GB";
  }

  const w = (key, values) => t(`monitor.${key}`, values);

  // el("td.num", { title }, child): h() with classes in the name.
  function el(kind, attributes = {}, ...children) {
    const [tag, ...classes] = kind.split(".");
    return h(tag, { class: classes.join(" ") || null, ...attributes }, ...children);
  }

  // Writes only what differs, so that a tick without news touches no layout and no selection.
  function text(node, value) {
    const wanted = String(value ?? "");
    if (node.textContent !== wanted) node.textContent = wanted;
  }

  function attribute(node, name, value) {
    if (value === null || value === undefined || value === false) node.removeAttribute(name);
    else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
  }

  // Makes the children of `parent` match `rows` by key: known ones are updated in place, so focus and selection stay.
  function keyed(parent, rows, key, make, update) {
    const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
    rows.forEach((row, place) => {
      const name = String(key(row));
      let node = known.get(name);
      known.delete(name);
      if (!node) {
        node = make(row);
        node.dataset.key = name;
      }
      if (parent.children[place] !== node) parent.insertBefore(node, parent.children[place] ?? null);
      update(node, row);
    });
    for (const gone of known.values()) gone.remove();
  }

  // As text(); what stands between backticks is a command.
  function setCommands(node, words) {
    if (node.textContent === words.replaceAll("`", "")) return;
    node.replaceChildren(...words.split("`").map((part, place) => (place % 2 ? el("code", {}, part) : part)));
  }

  const isNothing = (value) => value === null || value === undefined;

  // As many significant digits as asked for, but never fewer than all before the point.
  function number(value, digits = 4) {
    if (isNothing(value)) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e9)) return value.toExponential(2);
    const style = size === 0 || size >= 10 ** (digits - 1)
      ? { maximumFractionDigits: 0 } : { minimumSignificantDigits: digits, maximumSignificantDigits: digits };
    return new Intl.NumberFormat(locale, style).format(value);
  }

  function whole(value) {
    return isNothing(value) ? "–" : new Intl.NumberFormat(locale).format(Math.round(value));
  }

  function mibAsGib(value) {
    return isNothing(value) ? "–" : number(value / 1024, 3);
  }

  function duration(seconds) {
    if (isNothing(seconds)) return "–";
    const all = Math.max(0, Math.round(seconds));
    const [days, hours, minutes] = [Math.floor(all / 86400), Math.floor(all / 3600) % 24, Math.floor(all / 60) % 60];
    if (all < 60) return w("time.seconds", { seconds: all });
    if (all < 3600) return w("time.minutes", { minutes, seconds: two(all % 60) });
    if (all < 86400) return w("time.hours", { hours, minutes: two(minutes) });
    return w("time.days", { days, hours });
  }

  function two(value) {
    return String(value).padStart(2, "0");
  }

  // 2026-11-21 09:30:00 by the browser's clock: nobody takes the month for the day.
  function moment(epoch, withDate = true) {
    if (!epoch) return "–";
    const at = new Date(epoch * 1000);
    const clock = [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":");
    return withDate ? `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock}` : clock;
  }

  // State is always told in words; the sign and the colour only repeat it.
  const SIGNS = {
    queued: "◌", preflight: "◌", pending: "◌", starting: "◔", running: "●", stopping: "◑", stopped: "■",
    finished: "✓", failed: "✕", lost: "?", broken: "!", unreachable: "!", unseen: "?",
    watched: "◉", unwatched: "○",
  };

  function badge(kind, state) {
    const node = el("span.mbm-badge", {}, el("span.mbm-sign", { "aria-hidden": "true" }), el("span"));
    setBadge(node, kind, state);
    return node;
  }

  function setBadge(node, kind, state) {
    attribute(node, "data-state", state);
    text(node.firstChild, SIGNS[state] ?? "");
    text(node.lastChild, w(`${kind}.${state}`));
  }

  window.Megaboard.live = {
    attribute, badge, duration, el, keyed, mibAsGib, moment, number, setBadge, setCommands, setWords, text, w, whole,
  };
})();
