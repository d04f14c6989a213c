// Charts: lines and areas as SVG in the site's own colours, which follow the palette by themselves, with the values under
// the pointer; and their twins as tables. The same looks as `loss_svg` of site/builder/plots.py.

import { showNumber } from "./format.mjs";

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { left: 52, right: 14, top: 10, bottom: 42 };
const TICK_PIXELS = { x: 90, y: 48 };
const MOST_NAMES = 12;
const READOUT_GAP = 12;
const MOST_STRETCHES = 800;

/**
 * A chart in `element` that is drawn when it comes near, and anew with `draw()` or where its size changes.
 *
 * @param {HTMLElement} element
 * @param {object} options axes: {x, y} titles; from: 0 where the values' axis begins there; say: a value's words; lines() -> what is drawn, or null
 *   while there is nothing: what stands there stays. A line has a name, x and y (null: not known), a colour's name, and may
 *   have a width, `floor` (an area between these values and y), `step`, `dashed`, `faint`, and `shown`, what is read out in
 *   place of y.
 */
export function makeChart(element, { axes, lines, from = null, say = (value) => showNumber(value, 4) }) {
  let visible = false;
  let drawn = null;

  function draw() {
    const shown = visible ? lines() : null;
    if (!shown) return;
    const known = shown.flatMap((line) => line.y.flatMap((y, index) => (y === null ? [] : [[line.x[index], y]])));
    if (!drawn) {
      const plot = make("svg", { "aria-hidden": "true" });
      drawn = { plot, legend: html("div", "chart__legend"), words: html("div", "chart__words"), readout: html("div", "chart__readout") };
      drawn.readout.hidden = true;
      const stage = html("div", "chart__stage");
      stage.append(plot, drawn.words, drawn.readout);
      element.replaceChildren(drawn.legend, stage);
    }
    drawn.lines = shown;
    drawn.places = null;
    drawn.legend.replaceChildren(html("span", "chart__axis", axes.y), ...legend(shown));
    const { clientWidth: width, clientHeight: height } = drawn.plot;
    const scale = known.length ? scales(known, from, width, height) : null;
    drawn.scale = scale;
    drawn.plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    drawn.plot.replaceChildren(...(scale ? [...grid(scale, width), ...shown.map((line) => curve(line, scale))] : []));
    drawn.words.replaceChildren(...(scale ? named(scale, axes, width, height) : []));
    element.dataset.drawn = "true";
  }

  function read(event) {
    if (!drawn?.scale) return;
    const { left } = drawn.plot.getBoundingClientRect();
    drawn.places ??= [...new Set(drawn.lines.flatMap((line) => line.x.filter((_, index) => line.y[index] !== null)))];
    const x = nearest(drawn.places, drawn.scale.xOf(event.clientX - left));
    const rows = drawn.lines.map((line) => ({ line, value: (line.shown ?? line.y)[line.x.indexOf(x)] })).filter(({ value }) => value != null);
    const title = html("div", "", `${axes.x} ${showNumber(x, 6)}`);
    drawn.readout.replaceChildren(title, ...rows.slice(0, MOST_NAMES).map(({ line, value }) => entry(line, `${line.name}: ${say(value)}`)));
    drawn.readout.hidden = false;
    const place = drawn.scale.x(x);
    const { offsetWidth } = drawn.readout;
    const right = place + READOUT_GAP + offsetWidth < drawn.plot.clientWidth;
    drawn.readout.style.left = `${Math.max(0, right ? place + READOUT_GAP : place - READOUT_GAP - offsetWidth)}px`;
    drawn.plot.querySelector(".pointer")?.remove();
    drawn.plot.append(make("path", { class: "pointer", d: `M${place} ${MARGIN.top}V${drawn.plot.clientHeight - MARGIN.bottom}` }));
  }

  function leave() {
    if (!drawn) return;
    drawn.readout.hidden = true;
    drawn.plot.querySelector(".pointer")?.remove();
  }

  const sight = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting) || visible) return;
    visible = true;
    draw();
  }, { rootMargin: "600px" });
  sight.observe(element);
  const size = new ResizeObserver(() => drawn && draw());
  size.observe(element);
  element.addEventListener("pointermove", read);
  element.addEventListener("pointerdown", read);
  element.addEventListener("pointerleave", leave);
  return {
    draw,
    stop() {
      sight.disconnect();
      size.disconnect();
    },
  };
}

/** Round values from below `low` to above `high`, as plots.py has them. */
function ticks(low, high, about, whole = false) {
  const raw = (high - low) / about || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  let step = power * [1, 2, 5, 10].find((factor) => power * factor >= raw * (1 - 1e-9));
  if (whole) step = Math.max(1, step);
  const first = Math.floor(low / step + 1e-9);
  const last = Math.max(Math.ceil(high / step - 1e-9), first + 1);
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(10)));
}

function scales(points, from, width, height) {
  const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
  const about = (pixels, each) => Math.max(2, Math.floor(pixels / each));
  const [least, most] = ends(xs);
  const [low, high] = ends(from === null ? ys : [from, ...ys]);
  const yTicks = ticks(low, high, about(height - MARGIN.top - MARGIN.bottom, TICK_PIXELS.y));
  const xTicks = ticks(least, most, about(width - MARGIN.left - MARGIN.right, TICK_PIXELS.x), true);
  const [left, right, bottom, top] = [MARGIN.left, width - MARGIN.right, height - MARGIN.bottom, MARGIN.top];
  const [first, last] = [least, most > least ? most : least + 1];
  return {
    x: (value) => left + ((value - first) / (last - first)) * (right - left),
    y: (value) => bottom - ((value - yTicks[0]) / (yTicks.at(-1) - yTicks[0])) * (bottom - top),
    xOf: (pixels) => first + ((pixels - left) / (right - left)) * (last - first),
    xTicks: xTicks.filter((value) => value >= first && value <= last),
    yTicks,
  };
}

/** The least and the largest; a list may have more values than a call may have arguments. */
function ends(values) {
  return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
}

function grid({ y, yTicks }, width) {
  return yTicks.map((value) => make("path", { class: "grid", d: `M${MARGIN.left} ${y(value)}H${width - MARGIN.right}` }));
}

function named({ x, y, xTicks, yTicks }, axes, width, height) {
  const below = height - MARGIN.bottom + 6;
  return [
    ...yTicks.map((value) => word("end", MARGIN.left - 8, y(value), showNumber(value, 6))),
    ...xTicks.map((value) => word("middle", x(value), below, showNumber(value, 6))),
    word("middle", (MARGIN.left + width - MARGIN.right) / 2, below + 16, axes.x),
  ];
}

/** A line, an area between two, or where only one value is known, a dot. */
function curve(line, { x, y }) {
  const stretches = [[]];
  line.y.forEach((value, index) => (value === null ? stretches.push([]) : stretches.at(-1).push(index)));
  const along = (indices, values) =>
    indices
      .map((index, place) => {
        const [right, up] = [x(line.x[index]).toFixed(1), y(values[index]).toFixed(1)];
        if (!place) return `${right} ${up}`;
        return line.step ? `H${right}V${up}` : `L${right} ${up}`;
      })
      .join("");
  const paths = stretches.filter((indices) => indices.length).map((all) => {
    const indices = line.floor ? all : thinned(all, line.y);
    if (!line.floor) return `M${along(indices, line.y)}${indices.length > 1 ? "" : "h0.01"}`;
    return `M${along(indices, line.y)}L${along(indices.toReversed(), line.floor)}Z`;
  });
  const look = ["line", line.floor && "area", line.dashed && "dashed", line.faint && "faint"].filter(Boolean).join(" ");
  const dot = !line.floor && line.y.filter((value) => value !== null).length === 1;
  const style = `--line-colour:var(--${line.colour});stroke-width:${dot ? 6 : (line.width ?? 2)}`;
  return make("path", { class: look, style, d: paths.join(""), "data-name": line.name, "data-points": line.y.length });
}

function legend(lines) {
  const named = lines.length > 1 ? lines : [];
  const more = named.length - MOST_NAMES;
  return [...named.slice(0, MOST_NAMES).map((line) => entry(line, line.name)), ...(more > 0 ? [html("span", "", `and ${more} more`)] : [])];
}

function entry(line, text) {
  const one = html("span", "chart__name", text);
  const mark = html("span", "swatch");
  mark.style.setProperty("--swatch", `var(--${line.colour})`);
  one.prepend(mark);
  return one;
}

function nearest(places, x) {
  return places.reduce((best, place) => (Math.abs(place - x) < Math.abs(best - x) ? place : best));
}

/** Of a long line what can be seen: of each short stretch the lowest and the highest place. */
function thinned(indices, y) {
  const each = Math.ceil(indices.length / MOST_STRETCHES);
  if (each <= 2) return indices;
  const kept = [indices[0]];
  for (let start = 0; start < indices.length; start += each) {
    const stretch = indices.slice(start, start + each);
    const low = stretch.reduce((best, index) => (y[index] < y[best] ? index : best));
    const high = stretch.reduce((best, index) => (y[index] > y[best] ? index : best));
    kept.push(Math.min(low, high), Math.max(low, high));
  }
  return [...new Set([...kept, indices.at(-1)])];
}

function make(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** Words stand above the shapes as HTML: `end` ends at its place, `middle` hangs below it. */
function word(kind, left, top, text) {
  const element = html("span", kind, text);
  element.style.left = `${left}px`;
  element.style.top = `${top}px`;
  return element;
}

function html(tag, kind, text = "") {
  const element = document.createElement(tag);
  element.className = kind;
  element.textContent = text;
  return element;
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
