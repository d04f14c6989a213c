// The memory over a range of one number, as a chart and as a table. Nothing is fetched until the reader opens it.

import { colour, makeChart, makeTable } from "../charts.mjs";

const PARTS = ["weights", "gradients", "optimizer_state", "activations", "temporary"];
const GIB = 2 ** 30;
const MOST_TIMES = 3;

/**
 * @param {HTMLDetailsElement} details
 * @param {object} page ask(request) -> answer, request(), plotly: the library's address
 */
export function makeSweep(details, page) {
  const along = details.querySelector("select");
  const note = details.querySelector("[data-slot=sweep-note]");
  const drawing = details.querySelector(".chart");
  const numbers = details.querySelector(".scroll");
  const axes = { x: "", y: "GiB of GPU memory" };
  let answer = null;
  let chart = null;
  let asking = 0;
  const fillTable = makeTable(details, () => ({
    head: answer ? [answer.title, "This setup", "Plain", answer.gpu].filter(Boolean) : [],
    body: (answer?.points ?? []).map((point) => point.row),
  }));

  function traces() {
    if (!answer) return null;
    const x = answer.points.map((point) => point.value);
    const parts = PARTS.map((part, index) => ({
      name: details.dataset[`name${index + 1}`],
      x,
      y: answer.points.map((point) => point.parts[part] / GIB),
      stackgroup: "parts",
      mode: "lines",
      line: { width: 1, color: colour(`series-${index + 1}`) },
      hovertemplate: "%{y:.2f} GiB",
    }));
    const plain = {
      name: "Plain",
      ...within(x, answer.points.map((point) => point.plain / GIB), axes.top ?? Infinity),
      mode: "lines",
      line: { width: 2, dash: "dot", color: colour("ink") },
      hovertemplate: "%{y:.2f} GiB",
    };
    return [...parts, plain, ...room(x), ...present()];
  }

  /** Where plain training takes many times as much, its line leaves the chart, and the setup stays readable. */
  function top() {
    const own = MOST_TIMES * Math.max(...answer.points.map((point) => point.total));
    return Math.max(...answer.points.map((point) => point.plain)) > own ? own / GIB : null;
  }

  /** What the GPU leaves for the setup; one that is much larger would press all else to the ground. */
  function room(x) {
    const highest = axes.top ?? (MOST_TIMES * Math.max(...answer.points.map((point) => Math.max(point.plain, point.total)))) / GIB;
    if (!answer.gpu || answer.points[0].room / GIB > highest) return [];
    const line = { width: 2, dash: "dash", color: colour("accent") };
    const y = answer.points.map((point) => point.room / GIB);
    return [{ name: answer.gpu, x, y, mode: "lines", line, hovertemplate: "room for %{y:.2f} GiB" }];
  }

  /** Where the reader's setup stands in the range. */
  function present() {
    if (!answer.present) return [];
    const marker = { size: 10, color: colour("ink"), line: { width: 2, color: colour("panel") } };
    const { value, total } = answer.present;
    return [{ name: "This setup", x: [value], y: [total / GIB], mode: "markers", marker, showlegend: false, hovertemplate: "%{y:.2f} GiB" }];
  }

  async function update() {
    if (!details.open) return;
    chart ??= makeChart(drawing, { plotly: page.plotly, axes, traces, from: 0 });
    const mine = ++asking;
    const given = await page.ask({ ...page.request(), along: along.value }).catch((error) => ({ error: error.message }));
    if (mine !== asking) return;
    note.textContent = given.error ?? "";
    drawing.hidden = numbers.hidden = Boolean(given.error);
    if (given.error) return;
    answer = given;
    axes.x = given.title;
    axes.top = top();
    if (axes.top) note.textContent = "Plain training goes beyond the chart; the table has its numbers.";
    chart.draw();
    fillTable();
  }

  details.addEventListener("toggle", update);
  along.addEventListener("change", update);
  return { update, stop: () => chart?.stop() };
}

/** A line as far as it is not above the top, with the point where it leaves. */
function within(x, y, top) {
  const above = y.findIndex((value) => value > top);
  if (above < 0) return { x, y };
  if (above === 0) return { x: [], y: [] };
  const share = (top - y[above - 1]) / (y[above] - y[above - 1]);
  const leaves = x[above - 1] + share * (x[above] - x[above - 1]);
  return { x: [...x.slice(0, above), leaves], y: [...y.slice(0, above), top] };
}
