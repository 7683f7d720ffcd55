// Rows of tabs; each tab shows one panel. The arrow keys work as in WAI-ARIA's tabs pattern. Python makes the rows with
// `tabs(...)`. The choice is stored while the browser's tab is open.
const keyOf = (list) => `megaboard-tab-${list.dataset.tabs}`;
const tabsOf = (list) => [...list.querySelectorAll('[role="tab"]')];
const panelOf = (tab) => document.getElementById(`place-${tab.dataset.tab}`);

// `redraw(name)` draws the panel of a tab.
export function mount(element, redraw) {
  const list = element.querySelector('[role="tablist"]'), all = tabsOf(list);
  const stored = sessionStorage.getItem(keyOf(list));
  list.addEventListener("click", ({ target }) => target.dataset.tab && show(list, target, redraw));
  list.addEventListener("keydown", (event) => onKey(list, event, redraw));
  show(list, all.find((tab) => tab.dataset.tab === stored) || all[0], redraw);
}

// Panels mount after their row of tabs, so each one asks whether it is shown.
export function isShown(name) {
  const tab = document.getElementById(`tab-${name}`);
  return !tab || tab.getAttribute("aria-selected") === "true";
}

export function arrange(name) {
  const tab = document.getElementById(`tab-${name}`), place = tab && panelOf(tab);
  if (!place) return;
  place.setAttribute("role", "tabpanel");
  place.setAttribute("aria-labelledby", tab.id);
  place.toggleAttribute("data-off", !isShown(name));
}

function show(list, chosen, redraw) {
  for (const tab of tabsOf(list)) {
    tab.setAttribute("aria-selected", String(tab === chosen));
    tab.tabIndex = tab === chosen ? 0 : -1;
    arrange(tab.dataset.tab);
  }
  sessionStorage.setItem(keyOf(list), chosen.dataset.tab);
  redraw(chosen.dataset.tab);
}

function onKey(list, event, redraw) {
  const all = tabsOf(list), now = all.indexOf(event.target);
  const to = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: all.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const tab = all[(to + all.length) % all.length];
  show(list, tab, redraw);
  tab.focus();
}
