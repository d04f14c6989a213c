// Puts an answer into the page: texts into their places, lengths into bars, instants into the timeline. What has not
// changed is not touched: an answer is shown within a part of a frame.

import { setCommand } from "../listing.mjs";

/**
 * @typedef {object} View the answer's places, and what stands in them
 * @property {(name: string) => HTMLElement} slot a place by its name
 * @property {HTMLElement[][]} bars the pieces of each bar
 * @property {HTMLDetailsElement} details the timeline's table, folded
 * @property {HTMLElement} advised the advice
 * @property {Map<string, string>} written place -> the text that was put there last
 * @property {number[][]} lengths of the bars' pieces, in percent
 * @property {string} standing how the verdict looks
 * @property {object[]} drawn the timeline as columns
 * @property {object[] | null} listed the timeline as a table
 */

/**
 * @param {HTMLElement} root the calculator
 * @param {AbortSignal} ended when its page goes
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
  // Paper has it unfolded.
  addEventListener("beforeprint", () => view.drawn.length && listStep(view, view.drawn), { signal: ended });
  return view;
}

/** Only what is new is looked up in the document: most of an answer is as it was. */
function write(view, name, text) {
  if (view.written.get(name) === text) return;
  view.written.set(name, text);
  const place = view.slot(name);
  const only = place.childNodes.length === 1 && place.firstChild;
  if (only?.nodeType === Node.TEXT_NODE) only.data = text;
  else place.textContent = text;
}

/** Shows an answer, all but the advice, which comes later. */
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
  slot("limit").hidden = answer.limit === null;
  slot("limit").style.left = `${answer.limit ?? 0}%`;
  slot("bars").ariaLabel = answer.bars_label;
}

/** How the verdict looks and, with it, how much room the advice gets. What was advised before says nothing any more. */
function showStanding(view, standing) {
  if (view.standing === standing) return;
  view.standing = standing;
  view.slot("standing").dataset.standing = view.advised.dataset.standing = standing;
  view.slot("choices").replaceChildren();
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

/** The table has hundreds of cells: it is filled when it is seen. */
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

/** An instant's cells, in the same words as in the template. */
export function instantTexts({ phase, place, peak, bytes }) {
  return [phase, peak ? `${place} (the peak)` : place, bytes];
}

/** The same words as in the template. */
export function stepLabel(timeline) {
  const peak = timeline.find((row) => row.peak);
  return `Memory held during the step, in ${timeline.length} stretches; the peak is in ${peak.phase}, ${peak.place}: ${peak.bytes}`;
}

/** One button for each thing that the reader could do. Those for the setup before have no effect until then. */
export function showAdvice(view, { error, sentence, choices = [] }) {
  view.advised.inert = false;
  write(view, "advice", error ?? sentence);
  view.slot("choices").replaceChildren(...choices.map(choiceLine));
}

function choiceLine({ text, changes }) {
  const line = document.createElement("li");
  const button = document.createElement("button");
  button.type = "button";
  button.className = "small";
  button.dataset.changes = JSON.stringify(changes);
  button.ariaLabel = `Set it: ${text}`;
  button.textContent = "Set it";
  line.append(`${text} `, button);
  return line;
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
