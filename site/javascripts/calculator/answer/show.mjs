// Puts an answer into the page: texts into their elements, lengths into bars, instants into the timeline. It writes
// only what has changed: writing everything would take longer than a frame.

import { setCommand } from "../../parts/listing.mjs";

/**
 * @typedef {object} View the elements that show an answer, and what they show now
 * @property {(name: string) => HTMLElement} slot an element by its name
 * @property {HTMLElement[][]} bars the segments of each bar
 * @property {HTMLDetailsElement} details holds the timeline's table, folded at first
 * @property {HTMLElement} advised the advice
 * @property {Map<string, string>} written element's name -> the text that was written there last
 * @property {number[][]} lengths of the bars' segments, in percent
 * @property {string} standing the verdict's kind, which sets its colour
 * @property {object[]} drawn the timeline that the columns show
 * @property {object[] | null} listed the timeline that the table shows
 */

/**
 * @param {HTMLElement} root the calculator's element
 * @param {AbortSignal} ended aborted when the theme has swapped in another page
 * @returns {View}
 */
export function makeView(root, ended) {
  const places = new Map([...root.querySelectorAll("[data-slot]")].map((place) => [place.dataset.slot, place]));
  const bars = [...root.querySelectorAll("[data-bar]")].map((bar) => [...bar.querySelectorAll("span")]);
  const slot = (name) => places.get(name);
  const view = {
    slot,
    bars,
    details: slot("timeline").closest("details"),
    advised: slot("choices").closest(".advice"),
    written: new Map(),
    lengths: bars.map(() => []),
    standing: slot("standing").dataset.standing,
    drawn: [],
    listed: null,
  };
  view.details.addEventListener("toggle", () => view.details.open && view.drawn.length && listStep(view, view.drawn));
  // The print style sheet unfolds the table, so it must be filled by then.
  addEventListener("beforeprint", () => view.drawn.length && listStep(view, view.drawn), { signal: ended });
  return view;
}

/** Writes a text if it has changed: most texts of an answer equal those of the answer before. */
function write(view, name, text) {
  if (view.written.get(name) === text) return;
  view.written.set(name, text);
  const place = view.slot(name);
  const only = place.childNodes.length === 1 && place.firstChild;
  if (only?.nodeType === Node.TEXT_NODE) only.data = text;
  else place.textContent = text;
}

/** Shows an answer except the advice, which Python sends later. */
export function showTexts(view, answer) {
  const { slot } = view;
  const { command, ...texts } = answer.texts;
  for (const [name, text] of Object.entries(texts)) write(view, name, text);
  setCommand(slot("command"), command);
  for (const [name, text] of Object.entries(answer.why)) write(view, `why-${name}`, text);
  for (const place of ["gpu-total", "bar-total"]) write(view, place, answer.texts.total);
  write(view, "bar-plain", answer.texts["plain-total"]);
  showBars(view, answer);
  showStanding(view, answer.standing);
  slot("on-host").hidden = !answer.on_host;
  slot("not-on-host").hidden = answer.on_host;
  showStep(view, answer.timeline);
  view.advised.inert = true;
}

function showBars({ slot, bars, lengths }, answer) {
  bars.forEach((pieces, bar) =>
    pieces.forEach((piece, part) => {
      const length = answer.bars[bar][part];
      if (lengths[bar][part] === length) return;
      lengths[bar][part] = length;
      piece.style.flexBasis = `${length}%`;
    }),
  );
  showOthers(slot, answer);
  slot("limit").hidden = answer.limit === null;
  slot("limit").style.left = `${answer.limit ?? 0}%`;
  slot("bars").ariaLabel = answer.bars_label;
}

/** A small bar for each of the other GPUs, which hold the same: all have one background. */
function showOthers(slot, { others, bars }) {
  const place = slot("others");
  place.hidden = slot("bar-others").hidden = !others;
  fit(place, others, () => document.createElement("i"));
  if (!others) return;
  let end = 0;
  const stops = bars[0].map((length, part) => `var(--series-${part + 1}) ${end}% ${(end += length)}%`);
  place.style.setProperty("--parts", `linear-gradient(90deg, ${stops.join(", ")}, var(--shade) ${end}%)`);
}

/** Sets the verdict's kind, which also sets the advice's height, and removes the advice for the setup before. */
function showStanding(view, standing) {
  if (view.standing === standing) return;
  view.standing = standing;
  view.slot("standing").dataset.standing = view.advised.dataset.standing = standing;
  view.slot("choices").replaceChildren();
  showChoices(view);
  write(view, "advice", "\u00a0"); // keeps its line
}

function showStep(view, timeline) {
  drawStep(view, timeline);
  if (view.details.open) listStep(view, timeline);
  view.slot("step").ariaLabel = stepLabel(timeline);
}

function drawStep(view, timeline) {
  const columns = view.slot("step");
  fit(columns, timeline.length, () => document.createElement("span"));
  timeline.forEach((row, index) => {
    const before = view.drawn[index];
    const column = columns.children[index];
    if (before?.percent !== row.percent) column.style.height = `${row.percent}%`;
    if (before?.phase !== row.phase) column.dataset.phase = row.phase;
    if (before?.peak !== row.peak) column.dataset.peak = row.peak;
  });
  view.drawn = timeline;
}

/** Fills the timeline's table. It has hundreds of cells, so this is called only while the table is open. */
function listStep(view, timeline) {
  if (view.listed === timeline) return;
  view.listed = timeline;
  const table = view.slot("timeline");
  fit(table, timeline.length, instantRow);
  timeline.forEach((row, index) => {
    const line = table.rows[index];
    line.dataset.peak = row.peak;
    instantTexts(row).forEach((text, cell) => {
      if (line.cells[cell].textContent !== text) line.cells[cell].textContent = text;
    });
  });
}

/** The texts of an instant's cells, the same as in site/includes/calculator.html. */
export function instantTexts({ phase, place, peak, bytes }) {
  return [phase, peak ? `${place} (the peak)` : place, bytes];
}

/** The timeline in words for screen readers, the same as `step_label` of site/builder/calculator/form.py. */
export function stepLabel(timeline) {
  const peak = timeline.find((row) => row.peak);
  return `Memory held during the step, in ${timeline.length} stretches; the peak is in ${peak.phase}, ${peak.place}: ${peak.bytes}`;
}

/** Shows a row for each advised change. `showTexts` has made the old buttons inert: they belong to another setup. */
export function showAdvice(view, { error, sentence, room = "", choices = [] }) {
  view.advised.inert = false;
  write(view, "advice", error ?? sentence);
  write(view, "advice-room", room && `of ${room}`);
  view.slot("choices").replaceChildren(...choices.map(choiceRow));
  showChoices(view);
}

/** Shows the table's head only above rows. */
function showChoices({ slot }) {
  slot("choices").closest("table").hidden = !slot("choices").rows.length;
}

function choiceRow({ change, memory, cost, changes }) {
  const row = document.createElement("tr");
  const head = document.createElement("th");
  head.scope = "row";
  head.textContent = change;
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "small", textContent: "Set it", ariaLabel: `Set it: ${change}` });
  button.dataset.changes = JSON.stringify(changes);
  row.append(head);
  for (const content of [memory, cost, button]) row.insertCell().append(content);
  return row;
}

function fit(parent, count, make) {
  while (parent.children.length > count) parent.lastElementChild.remove();
  while (parent.children.length < count) parent.append(make());
}

function instantRow() {
  const line = document.createElement("tr");
  for (let cell = 0; cell < 3; cell++) line.insertCell();
  return line;
}
