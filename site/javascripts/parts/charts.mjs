// Charts by Plotly, which is fetched when the first chart comes near the window.

import { inOwnTask } from "./pieces.mjs";

let plotly = null;

function loadPlotly(address) {
  plotly ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = address;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      plotly = null;
      reject(new Error("the charts' library did not arrive"));
    };
    document.head.append(script);
  });
  return plotly;
}

/** Resolves after a frame was painted: running the library blocks the page for a quarter of a second. */
function painted() {
  return plotly ?? new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
}

export function colour(name) {
  return getComputedStyle(document.body).getPropertyValue(`--${name}`).trim();
}

/** Escapes a text for Plotly, which interprets some tags. Volunteers' names may contain anything. */
export function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/**
 * @typedef {object} Chart
 * @property {HTMLElement} element contains the chart
 * @property {string} plotly address of the library
 * @property {{x: string, y: string, top?: number | null}} axes titles and, if lines may be cut off, the chart's top
 * @property {number | null} from 0 if the vertical axis begins at zero, otherwise null
 * @property {() => object[] | null} traces Plotly's traces in the current colours; null means that there is nothing to
 *   draw yet, and the chart stays as it is
 * @property {boolean} visible whether it has come near the window; before, nothing is fetched
 * @property {boolean} drawn
 * @property {Promise} waiting resolves after all drawings that were asked for so far, which run one after the other
 * @property {() => void} stop removes its listeners
 */

/**
 * A chart that is drawn when it comes near the window, and again by `drawChart` and when the colours change.
 *
 * @param {HTMLElement} element
 * @param {{plotly: string, axes: object, traces: Function, from?: number}} options see Chart
 * @returns {Chart}
 */
export function makeChart(element, { plotly: address, axes, traces, from = null }) {
  const chart = { element, plotly: address, axes, from, traces, visible: false, drawn: false, waiting: Promise.resolve(), stop: null };
  if (!element.hasChildNodes()) element.append(waitNote());
  const sight = new IntersectionObserver((entries) => onSight(chart, entries), { rootMargin: "600px" });
  const draw = () => drawChart(chart);
  sight.observe(element);
  document.addEventListener("palette", draw);
  chart.stop = () => {
    sight.disconnect();
    document.removeEventListener("palette", draw);
  };
  return chart;
}

function onSight(chart, entries) {
  if (chart.visible || !entries.some((entry) => entry.isIntersecting)) return;
  chart.visible = true;
  drawChart(chart);
}

/** Draws the chart's current traces after all earlier drawings have finished. */
export function drawChart(chart) {
  if (!chart.visible) return;
  chart.waiting = chart.waiting.then(async () => {
    try {
      await drawNow(chart);
    } catch (error) {
      chart.element.textContent = `The chart cannot be drawn: ${error.message}. The table below has its numbers.`;
    }
  });
}

async function drawNow(chart) {
  await painted();
  const library = await loadPlotly(chart.plotly);
  // In a task of its own: Plotly takes a tenth of a second or more for each chart of a long run.
  await inOwnTask(() => react(chart, library));
}

async function react(chart, library) {
  const { element } = chart;
  if (!element.isConnected) return;
  const traces = chart.traces();
  if (!traces) return;
  if (!chart.drawn) element.replaceChildren();
  chart.drawn = true;
  await library.react(element, traces, layout(chart, traces.length), { displayModeBar: false, responsive: true });
  if (!element.dataset.drawn) element.on("plotly_afterplot", () => setTexts(element));
  setTexts(element);
  element.dataset.drawn = "true";
}

export function stopChart(chart) {
  chart.stop();
  if (chart.drawn) window.Plotly.purge(chart.element);
}

/** Plotly's layout in the current colours. */
function layout({ axes, from }, lines) {
  const ink = { color: colour("ink") };
  const axis = { tickangle: 0, gridcolor: colour("line"), linecolor: colour("line-strong"), zeroline: false, automargin: true };
  const legendTitle = { text: lines > 1 ? axes.y : "", side: "top" };
  return {
    autosize: true,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { ...ink, family: getComputedStyle(document.body).fontFamily, size: 12 },
    margin: { l: 48, r: 12, t: 8, b: 56 },
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("panel"), font: ink },
    showlegend: true,
    legend: { orientation: "h", y: 1.04, yanchor: "bottom", x: 0, title: legendTitle, font: ink },
    xaxis: { ...axis, title: { text: axes.x } },
    yaxis: { ...axis, ...rangeOf(axes.top, from) },
    uirevision: "kept",
  };
}

/** The vertical axis's range: up to a fixed top, from zero, or fitted to the lines. */
function rangeOf(top, from) {
  return top ? { range: [0, top] } : { rangemode: from === 0 ? "tozero" : "normal" };
}

/** The text that a chart's element shows until the chart is drawn. */
function waitNote() {
  const note = document.createElement("p");
  note.className = "chart__wait";
  note.textContent = "Loading the chart …";
  return note;
}

/**
 * Shows Plotly's texts again as HTML, on top of the chart; the style sheet hides the originals. Plotly covers its own
 * texts with layers for the pointer, so that axe-core cannot decide whether their contrast is sufficient.
 */
function setTexts(element) {
  const layer = element.querySelector(".chart__texts") ?? document.createElement("div");
  layer.className = "chart__texts";
  const { left, top } = element.getBoundingClientRect();
  const texts = [...element.querySelectorAll("svg text")].filter((text) => text.textContent && !text.closest(".hoverlayer"));
  const spans = texts.map((text) => {
    const box = text.getBoundingClientRect();
    const span = document.createElement("span");
    span.textContent = text.textContent;
    span.style.left = `${box.left - left}px`;
    span.style.top = `${box.top - top}px`;
    return span;
  });
  layer.replaceChildren(...spans);
  element.append(layer);
}
