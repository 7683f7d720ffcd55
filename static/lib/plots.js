// Parts that all Plotly charts share: colours, frame, and redrawing when the size or the theme changes.
import { w } from "./words.js";

export function palette(node) {
  const style = getComputedStyle(node);
  const read = (name) => style.getPropertyValue(name).trim();
  return {
    text: read("--body-text-color"), quiet: read("--body-text-color-subdued"), grid: read("--mbm-grid") || read("--border-color-primary"),
    card: read("--background-fill-primary"), line: read("--mbm-line"), raw: read("--mbm-raw"), bad: read("--mb-bad"),
    evaluation: read("--mbm-evaluation"), checkpoint: read("--mbm-checkpoint"),
    family: style.fontFamily,
  };
}

export function frame(colours) {
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: colours.family, color: colours.text, size: 12 },
    margin: { l: 8, r: 8, t: 6, b: 8 },
    hovermode: "x unified",
    hoverlabel: { bgcolor: colours.card, bordercolor: colours.grid, font: { color: colours.text, size: 12 } },
    modebar: { bgcolor: colours.card, color: colours.quiet, activecolor: colours.text },
    dragmode: "zoom",
    showlegend: false,
  };
}

export function axis(colours, visible) {
  return {
    gridcolor: colours.grid, linecolor: colours.grid, zeroline: false, tickfont: { size: 11, color: colours.quiet },
    automargin: true, visible,
  };
}

export function config() {
  const dictionary = {
    "Download plot as a PNG": w("plotly.png"), "Reset axes": w("plotly.reset"), "Autoscale": w("plotly.reset"), "Double-click to zoom back out": w("plotly.back"),
    "Taking snapshot - this may take a few seconds": w("plotly.taking"), "Snapshot succeeded": w("plotly.taken"),
  };
  return {
    displaylogo: false, responsive: false, displayModeBar: "hover", locale: "page",
    locales: { page: { dictionary, format: {} } }, modeBarButtons: [["toImage", "resetScale2d"]],
  };
}

// Fits the plots to the size of their boxes, and calls `redraw` when the page turns dark or light.
export function watchPlots(plots, redraw) {
  const resize = new ResizeObserver((changes) => changes.forEach((change) => fitBox(change.target)));
  const isDark = () => document.body.classList.contains("dark");
  let dark = isDark();
  const theme = new MutationObserver(() => {
    if (dark === isDark()) return;
    dark = isDark();
    redraw();
  });
  plots.forEach((plot) => resize.observe(plot));
  theme.observe(document.body, { attributes: true, attributeFilter: ["class"] });
  return {
    close() {
      resize.disconnect();
      theme.disconnect();
    },
  };
}

function fitBox(plot) {
  if (plot.clientWidth && plot.data) window.Plotly.Plots.resize(plot);
}
