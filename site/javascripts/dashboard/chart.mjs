// A chart of lines over the epochs, as SVG. It is drawn line by line in tasks of their own, because a library for charts
// would keep the browser from answering the reader for a tenth of a second and more at each drawing.
//
// The lines have classes and the palette's variables, so that they change with the palette without a drawing. The first
// picture of a recorded run, which stands in the page, looks alike: see site/builder/dashboard/curves.py.

import { element as made } from "../parts/elements.mjs";
import { showCount, showNumber } from "../parts/format.mjs";
import { inOwnTask } from "../parts/pieces.mjs";
import { showLegend } from "./legend.mjs";
import { followPointer, placeOverlay, showTip } from "./pointer.mjs";
import { areaPath, linePath, pointsAround, roundValues, roundedOut, scaleOf, stepPath, thinned, valuesIn } from "./scale.mjs";

const SVG = "http://www.w3.org/2000/svg";
/** Pixels around the plot's area: for the axis's title above, and for the epochs and their title below. */
const [ABOVE, BELOW, RIGHT] = [30, 44, 16];
const MARGIN = 5;
/** Pixels of a line of text. */
const LINE = 16;
/** Pixels of a digit, and from one label to the next along each axis. */
const [DIGIT, EACH_X, EACH_Y] = [7.5, 90, 48];

/**
 * @typedef {object} Line
 * @property {string} name
 * @property {string} colour a colour of the palette
 * @property {(number | null)[][]} points [epoch, value], the oldest first
 * @property {boolean} [strong] whether it stands for the whole run
 * @property {boolean} [dots] whether its points stand alone, as rings
 * @property {boolean} [steps] whether each value stays until the next, above a filled area
 */

/**
 * @typedef {object} View what all charts of a page show: `last` epochs, or those of a range, or the whole run
 * @property {number | null} last
 * @property {number[] | null} range
 */

/**
 * @typedef {object} Chart
 * @property {HTMLElement} element contains the drawing
 * @property {HTMLElement} legend stands above it, with a button for each line
 * @property {string} title of the vertical axis
 * @property {() => Line[] | null} lines null means that there is nothing to draw yet, and the chart stays as it is
 * @property {boolean} fromZero whether the vertical axis begins at zero
 * @property {View} view
 * @property {() => void} onView to be called when the reader has changed the view
 * @property {Set<string>} hidden names of the lines that the reader has switched off
 * @property {{width: number, height: number}} size of the element, in pixels
 * @property {Drawing | null} drawing the current one
 * @property {Line[]} all the lines of the current drawing, also those that are switched off
 * @property {object} pointer see pointer.mjs
 * @property {() => void} redraw
 * @property {boolean} due whether a drawing has been asked for and not begun
 * @property {Promise} waiting ends when all drawings that were asked for have ended
 * @property {() => void} stop
 */

/**
 * @typedef {object} Drawing
 * @property {string} title
 * @property {{width: number, height: number}} size of the element, in pixels
 * @property {Line[]} lines those that are shown, with the points in the range
 * @property {number[]} range first and last epoch
 * @property {number[]} values lowest and highest value of the vertical axis
 * @property {{value: number, text: string}[]} labels of the vertical axis
 * @property {{left: number, top: number, width: number, height: number}} area of the plot in the element, in pixels
 * @property {Scale} scale see scale.mjs
 */

/** A chart that is drawn by `drawChart`, and again when its size changes. @returns {Chart} */
export function makeChart(element, { title, lines, fromZero = false, view, onView }) {
  const legend = made("div", []);
  legend.className = "legend";
  legend.role = "group";
  legend.ariaLabel = `Lines: ${title}`;
  const chart = {
    element, legend, title, lines, fromZero, view, onView, hidden: new Set(), size: { width: 0, height: 0 }, drawing: null, all: [],
    pointer: null, due: false, waiting: Promise.resolve(), redraw: () => drawChart(chart), stop: null,
  };
  element.before(legend);
  const sized = new ResizeObserver(([{ contentRect: { width, height } }]) => {
    chart.size = { width, height };
    drawChart(chart);
  });
  chart.pointer = followPointer(chart);
  sized.observe(element);
  chart.stop = () => {
    sized.disconnect();
    legend.remove();
  };
  return chart;
}

/** Draws the current lines after all earlier drawings; once, however often it was asked for meanwhile. */
export function drawChart(chart) {
  if (chart.due) return;
  chart.due = true;
  chart.waiting = chart.waiting.then(() => drawNow(chart)).catch((error) => {
    chart.element.textContent = `The chart cannot be drawn: ${error.message}. The table below has its numbers.`;
  });
}

async function drawNow(chart) {
  const drawing = await inOwnTask(() => {
    chart.due = false;
    const isShown = chart.size.width > 0 && chart.element.isConnected;
    const lines = isShown ? chart.lines() : null;
    if (lines) chart.all = lines;
    return lines && drawingOf(chart);
  });
  if (!drawing) return;
  const paths = [];
  for (const line of drawing.lines) paths.push(...(await inOwnTask(() => pathsOf(line, drawing))));
  await inOwnTask(() => put(chart, drawing, paths));
}

/** What is to be drawn, apart from the lines' paths. @returns {Drawing} */
function drawingOf(chart) {
  const { size, title, hidden, all } = chart;
  const range = rangeOf(chart.view, all);
  const lines = all.filter(({ name }) => !hidden.has(name)).map((line) => ({ ...line, points: pointsAround(line.points, range) }));
  const about = Math.max(2, Math.round((size.height - ABOVE - BELOW) / EACH_Y));
  const values = roundedOut(lines.flatMap(({ points }) => valuesIn(points, range)), about, chart.fromZero);
  const labels = roundValues(values, about).map((value) => ({ value, text: showNumber(value) }));
  const left = Math.round(16 + DIGIT * Math.max(...labels.map(({ text }) => text.length)));
  const area = { left, top: ABOVE, width: Math.max(1, size.width - left - RIGHT), height: Math.max(1, size.height - ABOVE - BELOW) };
  return { title, size, lines, range, values, labels, area, scale: scaleOf(range, values, area) };
}

/** First and last epoch to show. */
export function rangeOf({ last, range }, lines) {
  const ends = lines.flatMap(({ points }) => (points.length ? [points[0][0], points.at(-1)[0]] : []));
  const [first, newest] = ends.length ? [Math.min(...ends), Math.max(...ends)] : [0, 1];
  if (range) return [Math.max(first, range[0]), Math.max(range[0] + 1, Math.min(newest, range[1]))];
  return [last ? Math.max(first, newest - last) : first, newest];
}

/** The elements of a line: its path, and the area below it if it has one. */
function pathsOf(line, { area, scale }) {
  const { name, colour, strong, steps, dots } = line;
  const points = steps ? line.points : thinned(dots ? apart(line.points) : line.points, Math.ceil(area.width / 2));
  const path = steps ? stepPath(points, scale) : linePath(points, scale);
  const style = `stroke:var(--${colour})`;
  const stroke = drawn("path", { class: dots ? "dots" : steps || strong ? "all" : "one", "data-name": name, style, d: path });
  if (dots) return [stroke, drawn("path", { class: "dots dots--inside", d: path })];
  return steps ? [drawn("path", { class: "area", d: areaPath(path, points, scale) }), stroke] : [stroke];
}

/** Points with gaps between them, so that each is a dot. */
function apart(points) {
  return points.flatMap((point) => [point, [point[0], null]]);
}

function put(chart, drawing, paths) {
  const { element } = chart;
  const { size, area } = drawing;
  const picture = drawn("svg", { class: "plot", width: size.width, height: size.height, "aria-hidden": "true" });
  // An inner svg cuts off what lies outside of it; the margin is for lines and dots along its edges.
  const inner = { x: area.left - MARGIN, y: area.top - MARGIN, width: area.width + 2 * MARGIN, height: area.height + 2 * MARGIN };
  const plot = drawn("svg", { ...inner, viewBox: `${-MARGIN} ${-MARGIN} ${inner.width} ${inner.height}` });
  plot.append(...paths);
  picture.append(...gridOf(drawing), plot);
  // The pointer's overlay stays where it is: taken out and put back, it would lose the pointer.
  for (const old of [...element.childNodes]) if (old !== chart.pointer.overlay) old.remove();
  element.prepend(picture, textsOf(drawing));
  chart.drawing = drawing;
  placeOverlay(chart);
  element.dataset.drawn = "true";
  showLegend(chart);
  showTip(chart);
}

function gridOf({ area, labels, scale }) {
  return labels.map(({ value }) => drawn("path", { class: "grid", d: `M${area.left} ${area.top + scale.down(value)}h${area.width}` }));
}

/** Labels and titles. They are HTML, because axe-core cannot decide whether the contrast of an SVG's texts suffices. */
function textsOf({ title, size, area, range, labels, scale }) {
  const rows = labels.map(({ value, text }) => label(text, { x: area.left - 8, y: area.top + scale.down(value) - LINE / 2, side: "left" }));
  const below = area.top + area.height;
  const columns = roundValues(range, Math.max(2, Math.round(area.width / EACH_X)), true).map((epoch) => {
    const text = showCount(epoch);
    // The last label would be cut off at the edge.
    const x = Math.min(area.left + scale.across(epoch), size.width - 4 - (DIGIT * text.length) / 2);
    return label(text, { x, y: below + 5, side: "middle" });
  });
  const titles = [label("Epoch", { x: area.left + area.width / 2, y: size.height - LINE - 3, side: "middle" }), label(title, { x: 8, y: 5 })];
  const texts = made("div", [...rows, ...columns, ...titles]);
  texts.className = "chart__texts";
  return texts;
}

/** A text at a place in pixels, which is its left end, or else its middle, or it stands on the place's left. */
function label(text, { x, y, side = "right" }) {
  const span = made("span", [text]);
  span.dataset.side = side;
  Object.assign(span.style, { left: `${x}px`, top: `${y}px` });
  return span;
}

function drawn(tag, attributes) {
  const part = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) part.setAttribute(name, value);
  return part;
}
