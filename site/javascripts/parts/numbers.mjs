// A chart's numbers as a table, which is filled when the reader opens it.

import { element as made } from "./elements.mjs";
import { showRows } from "./rows.mjs";

const MOST_CELLS = 500;

/**
 * Returns a function that fills a table from `rows`, if its `details` is open; opening it fills it as well. Of a large
 * table the first rows are shown, with a button for more.
 */
export function makeTable(details, rows) {
  const table = details.querySelector(".numbers");
  const more = made("button", ["More rows"]);
  let [columns, pages] = ["", 1];
  Object.assign(more, { type: "button", className: "small", hidden: true });
  table.closest(".scroll").after(more);
  function fill() {
    if (!details.open) return;
    const { head, body } = rows();
    const most = pages * rowsAtOnce(head.length);
    // Rows of another width cannot be kept.
    if (columns !== JSON.stringify(head)) table.tBodies[0].replaceChildren();
    columns = JSON.stringify(head);
    table.tHead.replaceChildren(row(head, "th"));
    const shown = body.slice(0, most).map((cells) => ({ key: String(cells[0]), texts: cells.map(String), make: () => row(cells, "td") }));
    showRows(table.tBodies[0], shown);
    more.hidden = body.length <= most;
  }
  details.addEventListener("toggle", fill);
  more.addEventListener("click", () => {
    pages += 1;
    fill();
  });
  return fill;
}

/** So many rows come with each press of the button: the browser lays out some 500 cells within 30 ms. */
export function rowsAtOnce(columns) {
  return Math.max(20, Math.floor(MOST_CELLS / columns));
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
