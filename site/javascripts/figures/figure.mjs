// One figure: it sends its controls' values to Python and shows the answer. While Python computes, only the newest
// values are kept: a queue of all of them would make the drawing lag behind the hand.

import { hideUnused, makeControls, readControls, showValues, sliderOf, wordsFor, writeControls } from "./controls.mjs";
import { makeHandles, showHandles } from "./handles.mjs";

const STARTING = "Starting Python in your browser …";
/** Only a slower answer gets the note that Python is starting; for others it would flicker. */
const NOTE_AFTER_MS = 150;
/** A screen reader hears the caption when the reader has paused for this long. */
const SPOKEN_AFTER_MS = 600;
const SHARED_MS = 2000;

/**
 * @typedef {object} Figure the figure's state
 * @property {HTMLElement} element
 * @property {string} name
 * @property {(which: string) => HTMLElement} slot an element of the figure by its name
 * @property {object} page ask(request) -> answer; changed(), which the figure calls at each change; address() -> the
 *   page's address; signal, aborted when the theme has swapped in another page
 * @property {object} controls see controls.mjs
 * @property {object} handles see handles.mjs
 * @property {MediaQueryList} phone whether the narrow drawing is used
 * @property {object | null} wanted the newest request that was not sent to Python yet
 * @property {boolean} busy whether Python computes an answer
 * @property {boolean} awake whether the reader has touched the figure; before, Python is not asked
 * @property {number} resting timer: when it ends, a screen reader hears the caption
 * @property {object | null} shown the answer that is shown; null while it is the HTML's
 * @property {string} offered the values that the figure's file belongs to, as JSON
 */

/**
 * @param {HTMLElement} element
 * @param {object} page see Figure
 * @returns {Figure}
 */
export function makeFigure(element, page) {
  const slot = (which) => element.querySelector(`[data-slot="${which}"]`);
  const controls = makeControls(element);
  const figure = {
    element,
    name: element.dataset.figure,
    slot,
    page,
    controls,
    handles: makeHandles(slot("handles"), { slider: (name) => sliderOf(controls, name), words: (name) => wordsFor(controls, name) }),
    phone: matchMedia("(max-width: 30em)"),
    wanted: null,
    busy: false,
    awake: false,
    resting: 0,
    shown: null,
    offered: JSON.stringify(controls.defaults),
  };
  listen(figure);
  // The reader may have changed a control before this script was loaded.
  if (queryOf(figure).length) {
    hideUnused(controls);
    update(figure);
  }
  return figure;
}

function listen(figure) {
  const { element, slot, phone, page } = figure;
  const { signal } = page;
  const twin = slot("twin");
  element.addEventListener("input", () => changed(figure), { signal });
  element.addEventListener("submit", (event) => event.preventDefault(), { signal });
  twin.addEventListener("toggle", () => twin.open && figure.shown && list(figure), { signal });
  phone.addEventListener("change", () => figure.awake && update(figure), { signal });
  for (const kind of ["pointerenter", "focusin", "touchstart"]) {
    element.addEventListener(kind, () => figure.awake || update(figure), { passive: true, signal });
  }
  slot("reset").addEventListener("click", () => {
    writeControls(figure.controls, figure.controls.defaults);
    changed(figure);
  });
  slot("share").addEventListener("click", () => share(figure));
}

function changed(figure) {
  hideUnused(figure.controls);
  figure.page.changed();
  update(figure);
}

/** Asks Python for the values' answer, now or after the answer that it is computing. */
function update(figure, values = readControls(figure.controls)) {
  figure.awake = true;
  figure.wanted = { name: figure.name, values, narrow: figure.phone.matches };
  if (JSON.stringify(values) !== figure.offered) withdraw(figure);
  if (!figure.busy) run(figure);
}

/** Sends the newest request until there is none left. */
async function run(figure) {
  figure.busy = true;
  const late = setTimeout(() => {
    figure.element.dataset.state = "computing";
    write(figure, "note", STARTING);
  }, NOTE_AFTER_MS);
  while (figure.wanted && !figure.page.signal.aborted) {
    const request = figure.wanted;
    figure.wanted = null;
    const answer = await answerTo(figure, request);
    clearTimeout(late);
    if (figure.page.signal.aborted) break;
    if (answer.error) showFailure(figure, answer.error);
    else show(figure, answer, request.values);
  }
  clearTimeout(late);
  figure.busy = false;
}

async function answerTo({ page }, request) {
  try {
    return await page.ask(request);
  } catch (error) {
    return { error: `The browser's Python failed: ${error.message}. The drawing still shows its last answer.` };
  }
}

function showFailure(figure, error) {
  figure.element.dataset.state = "failed";
  write(figure, "note", error);
  if (!figure.wanted) offer(figure, null);
}

/** Shows the answer to some values. */
function show(figure, answer, values) {
  const { slot, controls } = figure;
  figure.shown = answer;
  // If the reader has moved a slider meanwhile, writing the answer's values would pull it back.
  if (!figure.wanted) writeControls(controls, answer.values);
  showValues(controls, answer);
  slot("drawing").innerHTML = answer.drawing;
  slot("drawing").ariaLabel = answer.label;
  showHandles(figure.handles, answer.handles);
  write(figure, "caption", answer.caption);
  write(figure, "note", answer.note);
  // The file of values that the reader has changed meanwhile stays withdrawn.
  if (!figure.wanted) {
    figure.offered = JSON.stringify(values);
    offer(figure, answer.file);
  }
  if (slot("twin").open) list(figure);
  figure.element.dataset.state = "shown";
  clearTimeout(figure.resting);
  figure.resting = setTimeout(() => write(figure, "spoken", answer.caption), SPOKEN_AFTER_MS);
}

/** Writes a text if it has changed: screen readers may announce a live region at each write. */
function write({ slot }, which, text) {
  const place = slot(which);
  if (place.textContent !== text) place.textContent = text;
}

/** Until the answer to the new values comes, the file of the old ones cannot be taken for theirs. */
function withdraw(figure) {
  const link = figure.slot("file");
  if (!link) return;
  link.removeAttribute("href");
  write(figure, "file-text", "The file for these values is being computed …");
}

/** Offers the file for the current values, in figures that have one; hides the link if these values have no file. */
function offer(figure, file) {
  const link = figure.slot("file");
  if (!link) return;
  link.closest("p").hidden = !file;
  figure.slot("file-text").closest("details").hidden = !file;
  if (!file) return;
  link.href = `data:text/plain;charset=utf-8,${encodeURIComponent(file.text)}`;
  write(figure, "file-text", file.text);
}

/** Fills the table with the drawing's numbers; called only while it is open. */
function list({ slot, shown }) {
  const table = slot("table");
  table.tHead.replaceChildren(row(shown.head, "th"));
  table.tBodies[0].replaceChildren(...shown.rows.map((cells) => row(cells, "td")));
}

/** A table row. Its first cell is always a heading: of a column in the table's head, of the row below. */
function row(cells, tag) {
  const line = document.createElement("tr");
  cells.forEach((text, index) => {
    const cell = document.createElement(index ? tag : "th");
    if (cell.tagName === "TH") cell.scope = tag === "th" ? "col" : "row";
    cell.textContent = text;
    line.append(cell);
  });
  return line;
}

async function share({ slot, page, element }) {
  const link = new URL(page.address());
  link.hash = element.id;
  const done = await navigator.clipboard.writeText(link.href).then(() => "Link copied", () => "The link is in the address bar");
  slot("share").textContent = done;
  setTimeout(() => (slot("share").textContent = "Copy a link to this"), SHARED_MS);
}

/** The values that differ from the defaults, as [name, value] for an address. */
export function queryOf({ name, controls }) {
  return differing(readControls(controls), controls.defaults).map(([control, value]) => [`${name}.${control}`, value]);
}

/** The values that differ from `others`, as [name, value]. */
export function differing(values, others) {
  return Object.entries(values).filter(([name, value]) => value !== others[name]);
}

/** Sets the figure to the values in an address. They need no check here: Python validates them. */
export function readQuery(figure, given) {
  const values = valuesIn(given, figure.name, figure.controls.defaults);
  if (!differing(values, readControls(figure.controls)).length) return;
  writeControls(figure.controls, values);
  update(figure, values);
}

/** A figure's values in an address; a control that the address does not name has its default. */
export function valuesIn(given, name, defaults) {
  return Object.fromEntries(Object.entries(defaults).map(([control, first]) => [control, given.get(`${name}.${control}`) ?? first]));
}
