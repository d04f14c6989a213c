// The names of a chart's lines: a button for each, which switches its line off and on, and brings it out while the
// pointer or the keyboard is on it.

import { element } from "../parts/elements.mjs";

/** Brings the legend up to date; a chart of one line needs none. */
export function showLegend(chart) {
  const { legend, all, hidden } = chart;
  const lines = all.length > 1 ? [all.at(-1), ...all.slice(0, -1)] : []; // the whole run's line is drawn last, and named first
  const state = JSON.stringify(lines.map(({ name, colour }) => [name, colour]));
  if (legend.dataset.state !== state) legend.replaceChildren(...lines.map((line) => lineButton(chart, line)));
  legend.dataset.state = state;
  legend.hidden = !lines.length;
  for (const button of legend.children) button.setAttribute("aria-pressed", !hidden.has(button.dataset.name));
}

/** The sign that stands before a line's name. */
export function swatchOf({ colour, dots }) {
  const swatch = element("span", []);
  swatch.className = dots ? "swatch swatch--ring" : "swatch";
  swatch.style.setProperty("--swatch", `var(--${colour})`);
  return swatch;
}

function lineButton(chart, line) {
  const { name } = line;
  const button = element("button", [swatchOf(line), name]);
  button.type = "button";
  button.dataset.name = name;
  button.addEventListener("click", () => toggle(chart, name));
  for (const [event, on] of [["pointerenter", true], ["focus", true], ["pointerleave", false], ["blur", false]]) {
    button.addEventListener(event, () => bringOut(chart, name, on));
  }
  return button;
}

function toggle(chart, name) {
  if (!chart.hidden.delete(name)) chart.hidden.add(name);
  showLegend(chart);
  chart.redraw();
}

function bringOut({ element: drawing }, name, on) {
  for (const line of drawing.querySelectorAll("[data-name]")) line.classList.toggle("out", on && line.dataset.name === name);
}
