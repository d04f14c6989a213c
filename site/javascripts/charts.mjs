// Charts by Plotly, which is fetched when the first one comes into sight, and their twins as tables.

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

/** What stands on the page is painted: the library takes a quarter of a second of the page's own time. */
function painted() {
  return plotly ?? new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
}

export function colour(name) {
  return getComputedStyle(document.body).getPropertyValue(`--${name}`).trim();
}

/** Names come from strangers; Plotly would read tags in them. */
export function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/**
 * @typedef {object} Chart
 * @property {HTMLElement} element its place
 * @property {string} plotly address of the library
 * @property {{x: string, y: string, top?: number | null}} axes titles and, where lines may leave the chart, its top
 * @property {number | null} from 0 where the upright axis begins at zero
 * @property {() => object[] | null} traces Plotly's traces in the present colours, or null while there is nothing to
 *   draw: what stands there stays
 * @property {boolean} visible whether it has come into sight: before, nothing is fetched
 * @property {boolean} drawn
 * @property {Promise} waiting settled when it is as it was asked for until now: drawings follow each other
 * @property {() => void} stop forgets all that it listens to
 */

/**
 * A chart that is drawn when it comes into sight, and again with `drawChart` and when the palette changes.
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

/** Draws what `traces` says now, when the drawings before are done. */
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
  const { element } = chart;
  await painted();
  const library = await loadPlotly(chart.plotly);
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

/** Plotly's layout in the present colours. */
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

/** The upright axis's range: to a fixed top, from zero, or as the lines have it. */
function rangeOf(top, from) {
  return top ? { range: [0, top] } : { rangemode: from === 0 ? "tozero" : "normal" };
}

/** What stands in a chart's place until it is drawn. */
function waitNote() {
  const note = document.createElement("p");
  note.className = "chart__wait";
  note.textContent = "The chart is on its way …";
  return note;
}

/** Puts Plotly's texts where they stand once more, above the layers that it has for the pointer. */
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

/** Fills a table's body while its `details` is open; newest rows come first. */
export function makeTable(details, rows) {
  function fill() {
    if (!details.open) return;
    const { head, body } = rows();
    details.querySelector("thead").replaceChildren(row(head, "th"));
    details.querySelector("tbody").replaceChildren(...body.map((cells) => row(cells, "td")));
  }
  details.addEventListener("toggle", fill);
  return fill;
}

function row(cells, tag) {
  const line = document.createElement("tr");
  for (const text of cells) {
    const cell = document.createElement(tag);
    if (tag === "th") cell.scope = "col";
    cell.textContent = text;
    line.append(cell);
  }
  return line;
}
