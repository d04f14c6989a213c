// The memory over a range of one number, as a chart and as a table. Nothing is fetched until the reader opens it.

import { colour, drawChart, makeChart, makeTable, stopChart } from "../charts.mjs";

const PARTS = ["weights", "gradients", "optimizer_state", "activations", "temporary"];
const GIB = 2 ** 30;
const MOST_TIMES = 3;
const AMOUNT = "%{y:.2f} GiB";

/**
 * @typedef {object} Sweep
 * @property {object} page ask(request) -> answer, request(), plotly: the library's address
 * @property {HTMLDetailsElement} details all of it, folded at first
 * @property {HTMLSelectElement} along the number that grows
 * @property {HTMLElement} note a sentence above the chart
 * @property {HTMLElement} drawing the chart's place
 * @property {HTMLElement} numbers the table's place
 * @property {string[]} names of the parts of the memory, as the chart has them
 * @property {{x: string, y: string, top?: number | null}} axes titles and, where a line leaves the chart, its top in GiB
 * @property {object | null} answer what Python said last
 * @property {object | null} chart see charts.mjs; none until the reader opens the details
 * @property {() => void} fillTable fills the table, while it is open
 * @property {number} asking how often Python was asked: an older answer is dropped
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

/** Asks about the present setup, while the reader has it open, and draws the answer. */
export async function updateSweep(sweep) {
  const { page, details, along, note } = sweep;
  if (!details.open) return;
  sweep.chart ??= chartOf(sweep);
  const mine = ++sweep.asking;
  const answer = await page.ask({ ...page.request(), along: along.value }).catch((error) => ({ error: error.message }));
  if (mine !== sweep.asking) return;
  note.textContent = answer.error ?? "";
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
 * The lines of an answer for Plotly: the setup's parts, one on the other; plain training; what the GPU leaves; the
 * reader's setup.
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

/** The chart's top where plain training takes many times as much as the setup: its line leaves, and the setup stays readable. */
export function topOf({ points }) {
  const own = MOST_TIMES * Math.max(...points.map((point) => point.total));
  return Math.max(...points.map((point) => point.plain)) > own ? own / GIB : null;
}

/** What the GPU leaves for the setup; one that is much larger would press all else to the ground. */
function room(answer, x, top, colour) {
  const highest = top ?? (MOST_TIMES * Math.max(...answer.points.map((point) => Math.max(point.plain, point.total)))) / GIB;
  if (!answer.gpu || answer.points[0].room / GIB > highest) return [];
  const line = { width: 2, dash: "dash", color: colour("accent") };
  const y = inGib(answer, (point) => point.room);
  return [{ name: answer.gpu, x, y, mode: "lines", line, hovertemplate: "room for %{y:.2f} GiB" }];
}

/** Where the reader's setup stands in the range. */
function present({ present: now }, colour) {
  if (!now) return [];
  const marker = { size: 10, color: colour("ink"), line: { width: 2, color: colour("panel") } };
  return [{ name: "This setup", x: [now.value], y: [now.total / GIB], mode: "markers", marker, showlegend: false, hovertemplate: AMOUNT }];
}

/** A line as far as it is not above the top, with the point where it leaves. */
export function within(x, y, top) {
  const above = y.findIndex((value) => value > top);
  if (above < 0) return { x, y };
  if (above === 0) return { x: [], y: [] };
  const share = (top - y[above - 1]) / (y[above] - y[above - 1]);
  const leaves = x[above - 1] + share * (x[above] - x[above - 1]);
  return { x: [...x.slice(0, above), leaves], y: [...y.slice(0, above), top] };
}
