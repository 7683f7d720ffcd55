// The id of a curve for Plotly, which puts it into a CSS selector when the curve goes away (Plots.cleanPlot, ".cb" + uid).
// Metrics may have any name, such as rewards/accuracies.
export const traceId = (name) => name.replace(/[^A-Za-z0-9-]/g, (character) => `_${character.codePointAt(0).toString(16)}_`);
