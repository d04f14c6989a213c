// Tables with a row for every GPU, such as which ones a setup fits, or for every model. Each is filled while it is open.

/**
 * @typedef {object} GpuTable
 * @property {HTMLDetailsElement} details contains the table, folded at first, the fields that belong to it, and a note;
 *   `data-columns` names the keys of a row that follow its title
 * @property {object} page ask(request) -> answer; request() -> the current setup's request; refusal(error) -> the error with the
 *   page's labels; choose(name), which sets the GPU or the model
 * @property {number} asking number of requests so far: only the last one's answer is shown
 */

/** @returns {GpuTable} */
export function makeGpuTable(details, page) {
  const table = { details, page, asking: 0 };
  for (const event of ["toggle", "input"]) details.addEventListener(event, () => updateGpuTable(table));
  details.addEventListener("click", ({ target }) => {
    const name = target.closest("[data-name]")?.dataset.name;
    if (name) page.choose(name);
  });
  return table;
}

/** Opens a table with texts in its own fields; a field without one gets its first value. */
export function openGpuTable(table, texts) {
  for (const field of fieldsOf(table)) {
    field.value = texts[field.name] ?? (field.tagName === "SELECT" ? field.options[0].value : "");
  }
  if (table.details.open) updateGpuTable(table);
  else table.details.open = true; // its event updates it
}

const fieldsOf = ({ details }) => [...details.querySelectorAll("input, select")];

/** Asks Python about the current setup, if the reader has opened the table. */
export async function updateGpuTable(table) {
  const { details, page } = table;
  if (!details.open) return;
  const mine = ++table.asking;
  const fields = fieldsOf(table).map(({ name, value }) => [name, value.trim()]);
  const asked = { ...page.request(), ...Object.fromEntries(fields) };
  const { error, rows, note } = await page.ask(asked).catch((failed) => ({ error: failed.message }));
  if (mine !== table.asking) return;
  details.querySelector("[data-slot=table-note]").textContent = error ? page.refusal(error) : note;
  details.querySelector(".scroll").hidden = Boolean(error);
  const columns = details.dataset.columns.split(" ");
  if (!error) details.querySelector("tbody").replaceChildren(...rows.map((row) => rowOf(row, columns)));
}

function rowOf(values, columns) {
  const row = document.createElement("tr");
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "small", textContent: values.title ?? values.name });
  button.dataset.name = values.name;
  const head = document.createElement("th");
  head.scope = "row";
  head.append(button);
  row.append(head, ...columns.map((column) => cellOf(values[column])));
  return row;
}

/** Texts that are a verdict, which a mark makes visible at a glance. */
const STANDINGS = ["fits", "tight", "does not fit", "no"];

function cellOf(text) {
  const cell = document.createElement("td");
  cell.textContent = text;
  if (STANDINGS.includes(text)) cell.dataset.standing = text;
  return cell;
}
