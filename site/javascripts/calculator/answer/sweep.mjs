// Memory over a range of one number, as a chart and as a table. The charts' library is fetched when the reader opens
// it.

import { colour, drawChart, makeChart, stopChart } from "../../parts/charts.mjs";
import { makeTable } from "../../parts/numbers.mjs";

const PARTS = ["weights", "gradients", "optimizer_state", "activations", "temporary"];
const GIB = 2 ** 30;
/** The chart's height is at most this many times the setup's highest total. */
const MOST_TIMES = 3;
const AMOUNT = "%{y:.2f} GiB";

/**
 * @typedef {object} Sweep
 * @property {object} page ask(request) -> answer; request() -> the current setup's request; refusal(error) -> the error
 *   with the page's labels; plotly: the library's address
 * @property {HTMLDetailsElement} details contains all of this, folded at first
 * @property {HTMLSelectElement} along chooses the number that varies
 * @property {HTMLElement} note a sentence above the chart
 * @property {HTMLElement} drawing contains the chart
 * @property {HTMLElement} numbers contains the table
 * @property {string[]} names the memory's parts as the chart names them
 * @property {{x: string, y: string, top?: number | null}} axes titles and, if a line is cut off, the chart's top in GiB
 * @property {object | null} answer Python's last answer
 * @property {object | null} chart see parts/charts.mjs; null until the reader opens the details
 * @property {() => void} fillTable fills the table while the details are open
 * @property {number} asking number of requests so far: only the last one's answer is shown
 */

/**
 * @param {HTMLDetailsElement} details
 * @param {object} page see Sweep
 * @returns {Sweep}
 */
export function makeSweep(details, page) {
  const sweep = {
    page,
    details,
    along: details.querySelector("select"),
    note: details.querySelector("[data-slot=sweep-note]"),
    drawing: details.querySelector(".chart"),
    numbers: details.querySelector(".scroll"),
    names: PARTS.map((_, index) => details.dataset[`name${index + 1}`]),
    axes: { x: "", y: "GiB of GPU memory" },
    answer: null,
    chart: null,
    fillTable: makeTable(details, () => tableOf(sweep.answer)),
    asking: 0,
  };
  details.addEventListener("toggle", () => updateSweep(sweep));
  sweep.along.addEventListener("change", () => updateSweep(sweep));
  return sweep;
}

export function stopSweep({ chart }) {
  if (chart) stopChart(chart);
}

/** Asks Python about the current setup and draws the answer, if the reader has opened the details. */
export async function updateSweep(sweep) {
  const { page, details, along, note } = sweep;
  if (!details.open) return;
  sweep.chart ??= chartOf(sweep);
  const mine = ++sweep.asking;
  const answer = await page.ask({ ...page.request(), along: along.value }).catch((error) => ({ error: error.message }));
  if (mine !== sweep.asking) return;
  note.textContent = answer.error ? page.refusal(answer.error) : "";
  sweep.drawing.hidden = sweep.numbers.hidden = Boolean(answer.error);
  if (!answer.error) show(sweep, answer);
}

function chartOf(sweep) {
  const traces = () => sweep.answer && tracesOf(sweep.answer, { names: sweep.names, top: sweep.axes.top, colour });
  return makeChart(sweep.drawing, { plotly: sweep.page.plotly, axes: sweep.axes, traces, from: 0 });
}

function show(sweep, answer) {
  sweep.answer = answer;
  sweep.axes.x = answer.title;
  sweep.axes.top = topOf(answer);
  if (sweep.axes.top) sweep.note.textContent = "Plain training goes beyond the chart; the table has its numbers.";
  drawChart(sweep.chart);
  sweep.fillTable();
}

function tableOf(answer) {
  if (!answer) return { head: [], body: [] };
  return { head: [answer.title, "This setup", "Plain", answer.gpu].filter(Boolean), body: answer.points.map((point) => point.row) };
}

/**
 * An answer's lines for Plotly: the setup's parts, stacked; plain training; the GPU's free memory; the current setup.
 *
 * @param {object} answer of `sweep` in calculator/browser.py
 * @param {{names: string[], top: number | null, colour: (name: string) => string}} chart the parts' names, the chart's
 *   top in GiB or null, and the palette
 */
export function tracesOf(answer, { names, top, colour }) {
  const x = answer.points.map((point) => point.value);
  const parts = PARTS.map((part, index) => ({
    name: names[index],
    x,
    y: inGib(answer, (point) => point.parts[part]),
    stackgroup: "parts",
    mode: "lines",
    line: { width: 1, color: colour(`series-${index + 1}`) },
    hovertemplate: AMOUNT,
  }));
  return [...parts, plain(answer, x, top, colour), ...room(answer, x, top, colour), ...present(answer, colour)];
}

const inGib = (answer, bytesOf) => answer.points.map((point) => bytesOf(point) / GIB);

function plain(answer, x, top, colour) {
  return {
    name: "Plain",
    ...within(x, inGib(answer, (point) => point.plain), top ?? Infinity),
    mode: "lines",
    line: { width: 2, dash: "dot", color: colour("ink") },
    hovertemplate: AMOUNT,
  };
}

/**
 * The chart's top in GiB, or null if all lines fit. Plain training may need many times the setup's memory; at its scale
 * the setup's parts could not be told apart, so its line is cut off.
 */
export function topOf({ points }) {
  const own = MOST_TIMES * Math.max(...points.map((point) => point.total));
  return Math.max(...points.map((point) => point.plain)) > own ? own / GIB : null;
}

/** The line of the GPU's free memory. Omitted if far above the others: they would be flat at the bottom. */
function room(answer, x, top, colour) {
  const highest = top ?? (MOST_TIMES * Math.max(...answer.points.map((point) => Math.max(point.plain, point.total)))) / GIB;
  if (!answer.gpu || answer.points[0].room / GIB > highest) return [];
  const line = { width: 2, dash: "dash", color: colour("accent") };
  const y = inGib(answer, (point) => point.room);
  return [{ name: answer.gpu, x, y, mode: "lines", line, hovertemplate: "room for %{y:.2f} GiB" }];
}

/** The current setup as a point. */
function present({ present: now }, colour) {
  if (!now) return [];
  const marker = { size: 10, color: colour("ink"), line: { width: 2, color: colour("panel") } };
  return [{ name: "This setup", x: [now.value], y: [now.total / GIB], mode: "markers", marker, showlegend: false, hovertemplate: AMOUNT }];
}

/** The part of a line before it exceeds the top, ending exactly at the top. */
export function within(x, y, top) {
  const above = y.findIndex((value) => value > top);
  if (above < 0) return { x, y };
  if (above === 0) return { x: [], y: [] };
  const share = (top - y[above - 1]) / (y[above] - y[above - 1]);
  const leaves = x[above - 1] + share * (x[above] - x[above - 1]);
  return { x: [...x.slice(0, above), leaves], y: [...y.slice(0, above), top] };
}
