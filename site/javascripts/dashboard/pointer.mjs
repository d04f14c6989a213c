// The pointer over a chart: a box with the values at its epoch, and a range of epochs that is drawn across the chart to
// enlarge it. A finger shows the values; it does not enlarge, because it moves the page as well.

import { element } from "../parts/elements.mjs";
import { showCount, showNumber } from "../parts/format.mjs";
import { swatchOf } from "./legend.mjs";
import { pointAt } from "./scale.mjs";

/** A shorter movement with the button pressed is a click. */
const LEAST_PIXELS = 6;
/** So many lines' values fit into the box. */
const MOST_VALUES = 9;
/** Pixels between the pointer and the box. */
const ASIDE = 14;

/**
 * @typedef {object} Pointer
 * @property {HTMLElement} overlay lies over the plot's area, not over the texts, and contains the following
 * @property {HTMLElement} cross a line at the epoch whose values are told
 * @property {HTMLElement} chosen the part that the reader is choosing
 * @property {HTMLElement} tip the values
 * @property {number | null} at distance of the pointer from the area's left edge; null while it is elsewhere
 * @property {number | null} pressedAt where the button was pressed; null while it is up
 */

/** Lays an overlay over a chart that follows the pointer. @returns {Pointer} */
export function followPointer(chart) {
  const [cross, chosen, tip] = ["cross", "chosen", "tip"].map(hiddenPart);
  const overlay = element("div", [chosen, cross, tip]);
  overlay.className = "chart__overlay";
  overlay.ariaHidden = "true"; // the table has the same numbers
  chart.element.append(overlay);
  const on = (event, act) => overlay.addEventListener(event, act);
  on("pointermove", (event) => move(chart, event.offsetX));
  on("pointerdown", (event) => press(chart, event));
  on("pointerup", (event) => release(chart, event.offsetX));
  on("pointerleave", () => leave(chart));
  on("pointercancel", () => leave(chart));
  on("dblclick", () => setRange(chart, null));
  return { overlay, cross, chosen, tip, at: null, pressedAt: null };
}

function hiddenPart(name) {
  const part = element("div", []);
  part.className = `chart__${name}`;
  part.hidden = true;
  return part;
}

function move(chart, x) {
  chart.pointer.at = x;
  showTip(chart);
  showChosen(chart);
}

function press(chart, event) {
  if (event.pointerType === "mouse" && event.button === 0) {
    chart.pointer.pressedAt = event.offsetX;
    chart.pointer.overlay.setPointerCapture(event.pointerId);
    event.preventDefault(); // no selection of text
  }
  move(chart, event.offsetX);
}

function release(chart, x) {
  const { drawing, pointer } = chart;
  const { pressedAt } = pointer;
  pointer.pressedAt = null;
  showChosen(chart);
  if (pressedAt === null || !drawing || Math.abs(x - pressedAt) < LEAST_PIXELS) return;
  setRange(chart, [pressedAt, x].map((pixels) => epochAt(drawing, pixels)).sort((a, b) => a - b));
}

function leave(chart) {
  chart.pointer.at = chart.pointer.pressedAt = null;
  showTip(chart);
  showChosen(chart);
}

function setRange(chart, range) {
  Object.assign(chart.view, { last: null, range });
  chart.onView();
}

/** The epoch at a distance from the area's left edge, within the range that is drawn. */
function epochAt({ scale, range }, pixels) {
  return Math.round(Math.min(range[1], Math.max(range[0], scale.back(pixels))));
}

/** Lays the overlay over the area of the current drawing. */
export function placeOverlay({ element: chart, drawing: { area }, pointer: { overlay } }) {
  for (const [side, pixels] of Object.entries(area)) overlay.style[side] = `${pixels}px`;
  if (!overlay.isConnected) chart.append(overlay);
}

/** Shows which part the reader is choosing. */
function showChosen({ drawing, pointer: { chosen, pressedAt, at } }) {
  chosen.hidden = pressedAt === null || at === null || !drawing;
  if (chosen.hidden) return;
  const [from, to] = [pressedAt, at].map((pixels) => Math.min(drawing.area.width, Math.max(0, pixels))).sort((a, b) => a - b);
  Object.assign(chosen.style, { left: `${from}px`, width: `${to - from}px` });
}

/** Shows the values at the pointer's epoch; also after a drawing, because the values may have changed. */
export function showTip({ drawing, pointer: { cross, tip, at } }) {
  const told = at === null || !drawing ? null : valuesAt(drawing.lines, epochAt(drawing, at));
  cross.hidden = tip.hidden = !told?.values.length;
  if (tip.hidden) return;
  const { area, scale } = drawing;
  const x = scale.across(told.epoch);
  cross.style.left = `${x}px`;
  tip.replaceChildren(...tipRows(told));
  const isRight = x > area.width / 2;
  tip.style.left = isRight ? "auto" : `${x + ASIDE}px`;
  tip.style.right = isRight ? `${area.width - x + ASIDE}px` : "auto";
}

/**
 * The lines' values at the epoch of the last line that is nearest to `x`: the last one stands for the whole run.
 *
 * @returns {{epoch: number, values: (Line & {value: number})[]}} a Line as in chart.mjs, without its points
 */
export function valuesAt(lines, x) {
  const all = lines.at(-1)?.points.filter(([, value]) => value !== null) ?? [];
  if (!all.length) return { epoch: x, values: [] };
  const [epoch] = all.reduce((best, point) => (Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best));
  const found = [lines.at(-1), ...lines.slice(0, -1)].map(({ points, ...line }) => ({ ...line, value: pointAt(points, epoch)?.[1] ?? null }));
  return { epoch: Math.round(epoch), values: found.filter(({ value }) => value !== null) };
}

function tipRows({ epoch, values }) {
  const rows = values.slice(0, MOST_VALUES).map(({ value, ...line }) => element("p", [swatchOf(line), `${line.name}: ${showNumber(value, 4)}`]));
  const more = values.length - MOST_VALUES;
  return [element("p", [`Epoch ${showCount(epoch)}`]), ...rows, ...(more > 0 ? [element("p", [`and ${more} more`])] : [])];
}
