// The positions of a pipeline's passes on the canvas. Pure functions of the plan and the width.
import { axisStep } from "../lib/format.js";

// Widths of the stage names, of the idle shares and of the gap; heights of the phases and of the time axis.
export const NAME = 66, SIDE = 74, BREAK = 26, TOP = 24;
const AXIS = 20;

// The server sends each stage as [code, tick, code, tick, ...].
export function passesOf(plan) {
  return plan.passes.map((flat, stage) => Array.from({ length: flat.length / 2 }, (_, index) => {
    const code = flat[2 * index], unit = code >> 1, isBackward = Boolean(code & 1), chunk = unit % plan.virtual;
    const start = flat[2 * index + 1] * plan.tick_s;
    const duration = (isBackward ? plan.backward_s : plan.forward_s)[stage][chunk];
    return { stage, chunk, isBackward, micro: Math.floor(unit / plan.virtual), start, end: start + duration };
  }));
}

const rowHeight = (stages) => stages <= 8 ? 30 : stages <= 16 ? 22 : stages <= 32 ? 15 : 11;

// If micro-batches are left out, the steady phase has a gap at `cut`, and later times lie one BREAK further right.
export function layoutOf(plan, passes, width) {
  const unit = (width - NAME - SIDE - (plan.left_out ? BREAK : 0)) / plan.drawn_s;
  const cut = plan.left_out ? (plan.warm_s + plan.cool_s) / 2 : Infinity;
  const x = (time, isAfter) => NAME + time * unit + (isAfter ? BREAK : 0);
  const row = rowHeight(plan.stages), laneHeight = row - (row > 14 ? 4 : 2);
  const parts = [[0, Math.min(cut, plan.drawn_s), false], ...(plan.left_out ? [[cut, plan.drawn_s, true]] : [])];
  const lanes = [], boxes = [];
  passes.forEach((list, stage) => {
    const top = TOP + stage * row, bottom = top + laneHeight;
    for (const [from, to, isAfter] of parts) {
      lanes.push({ left: x(from, isAfter), right: x(to, isAfter), top, bottom });
      // A pass across the cut lies on both sides of it.
      for (const pass of list) {
        const left = x(Math.max(pass.start, from), isAfter), right = x(Math.min(pass.end, to), isAfter);
        const number = pass.micro + 1 + (isAfter ? plan.left_out : 0);
        if (right - left >= 0.05) boxes.push({ pass, number, isAfter, left, right, top, bottom });
      }
    }
  });
  const end = x(plan.drawn_s, Boolean(plan.left_out));
  const marks = [NAME, x(plan.warm_s, plan.warm_s > cut), x(plan.cool_s, plan.cool_s > cut), end];
  const phases = ["warm_up", "steady", "cool_down"].map((name, index) => ({ name, left: marks[index], right: marks[index + 1] }));
  return { row, laneHeight, height: TOP + plan.stages * row + AXIS, cut, x, end, lanes, boxes, phases,
    ticks: ticksOf(plan, cut, x) };
}

// Left of a gap the axis shows the seconds from the start, right of it the seconds up to the end.
function ticksOf(plan, cut, x) {
  const step = axisStep(plan.drawn_s, 8), digits = Math.max(0, -Math.floor(Math.log10(step)));
  const leftOut_s = plan.total_s - plan.drawn_s, ticks = [];
  const mark = (time, x) => ticks.push({ x, words: `${time.toFixed(digits)} s` });
  const last = plan.left_out ? cut : plan.drawn_s;
  for (let time = 0; time <= last + 1e-9; time += step) mark(time, x(time, false));
  if (!plan.left_out) return ticks;
  const first = Math.ceil((cut + leftOut_s) / step + 0.3) * step;
  for (let time = first; time <= plan.total_s + 1e-9; time += step) mark(time, x(time - leftOut_s, true));
  return ticks;
}
