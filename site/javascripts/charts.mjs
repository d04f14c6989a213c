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
 * A chart in `element` that redraws with `update(traces)` and follows the palette.
 *
 * @param {HTMLElement} element
 * @param {object} options plotly: address of the library; axes: {x, y} titles and, where lines may leave the chart, its
 *   top; traces() -> Plotly traces made with the present colours, or null while there is nothing to draw: what stands
 *   there stays
 */
export function makeChart(element, { plotly: address, axes, traces, from = null }) {
  let visible = false;
  let drawn = false;
  let waiting = Promise.resolve();
  if (!element.hasChildNodes()) element.append(waitNote());

  function layout(lines) {
    const axis = { tickangle: 0, gridcolor: colour("line"), linecolor: colour("line-strong"), zeroline: false, automargin: true };
    return {
      autosize: true,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("ink"), family: getComputedStyle(document.body).fontFamily, size: 12 },
      margin: { l: 48, r: 12, t: 8, b: 56 },
      hovermode: "x unified",
      hoverlabel: { bgcolor: colour("panel"), font: { color: colour("ink") } },
      showlegend: true,
      legend: { orientation: "h", y: 1.04, yanchor: "bottom", x: 0, title: { text: lines > 1 ? axes.y : "", side: "top" }, font: { color: colour("ink") } },
      xaxis: { ...axis, title: { text: axes.x } },
      yaxis: { ...axis, ...(axes.top ? { range: [0, axes.top] } : { rangemode: from === 0 ? "tozero" : "normal" }) },
      uirevision: "kept",
    };
  }

  function draw() {
    if (!visible) return;
    waiting = waiting.then(async () => {
      try {
        await painted();
        const library = await loadPlotly(address);
        if (!element.isConnected) return;
        const shown = traces();
        if (!shown) return;
        if (!drawn) element.replaceChildren();
        drawn = true;
        await library.react(element, shown, layout(shown.length), { displayModeBar: false, responsive: true });
        if (!element.dataset.drawn) element.on("plotly_afterplot", () => setTexts(element));
        setTexts(element);
        element.dataset.drawn = "true";
      } catch (error) {
        element.textContent = `The chart cannot be drawn: ${error.message}. The table below has its numbers.`;
      }
    });
  }

  const sight = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting) && !visible) {
      visible = true;
      draw();
    }
  }, { rootMargin: "600px" });
  sight.observe(element);
  document.addEventListener("palette", draw);
  return {
    draw,
    stop() {
      sight.disconnect();
      document.removeEventListener("palette", draw);
      if (drawn) window.Plotly.purge(element);
    },
  };
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
