// Long tables: rows that stand already are kept, and many new ones come piece by piece.

import { nextFrame } from "./pieces.mjs";

/** So many rows are made or compared in a task and laid out in a frame. */
const PIECE = 25;

/** Table's body -> number of its latest filling; an earlier one that is not complete ends. */
const fillings = new WeakMap();

/**
 * @typedef {object} Row
 * @property {string} key tells it from the other rows
 * @property {string[]} texts of its last cells; those before them never change
 * @property {Record<string, unknown>} [data] its data attributes
 * @property {() => HTMLTableRowElement} make makes it, with a cell for each text, which may be empty
 */

/**
 * Makes a table's body consist of these rows. Only what differs is touched, so that the browser lays out little anew
 * and the reader's selection stays.
 *
 * @param {HTMLTableSectionElement} body
 * @param {Row[]} rows
 */
export async function showRows(body, rows) {
  const mine = (fillings.get(body) ?? 0) + 1;
  fillings.set(body, mine);
  const known = new Map([...body.children].map((line) => [line.dataset.key, line]));
  const wanted = new Set(rows.map(({ key }) => key));
  for (const line of [...body.children]) {
    const { key } = line.dataset;
    if (!wanted.has(key) || known.get(key) !== line) line.remove();
  }
  let previous = null;
  for (const [place, row] of rows.entries()) {
    if (place && place % PIECE === 0) {
      await nextFrame();
      if (fillings.get(body) !== mine) return;
    }
    previous = put(body, known.get(row.key), row, previous);
  }
}

/** Puts a row behind `previous`; returns its element. */
function put(body, known, row, previous) {
  const line = known ?? row.make();
  setData(line, { ...row.data, key: row.key });
  setTexts(line, row.texts);
  const next = previous ? previous.nextElementSibling : body.firstElementChild;
  if (line !== next) body.insertBefore(line, next);
  return line;
}

function setData(line, data) {
  for (const [name, value] of Object.entries(data)) if (line.dataset[name] !== String(value)) line.dataset[name] = value;
}

function setTexts(line, texts) {
  const first = line.children.length - texts.length;
  texts.forEach((text, place) => {
    const cell = line.children[first + place];
    if (cell.textContent !== text) cell.textContent = text;
  });
}
