// Which GPUs a setup fits, as a table that is filled while it is open.

/**
 * @typedef {object} Gpus
 * @property {HTMLDetailsElement} details contains the table, folded at first
 * @property {object} page ask(request) -> answer; request() -> the current setup's request; choose(name), which sets the GPU
 * @property {number} asking number of requests so far: only the last one's answer is shown
 */

/** @returns {Gpus} */
export function makeGpus(details, page) {
  const gpus = { details, page, asking: 0 };
  details.addEventListener("toggle", () => updateGpus(gpus));
  details.addEventListener("click", ({ target }) => {
    const name = target.closest("[data-gpu]")?.dataset.gpu;
    if (name) page.choose(name);
  });
  return gpus;
}

/** Asks Python about the current setup, if the reader has opened the table. */
export async function updateGpus(gpus) {
  const { details, page } = gpus;
  if (!details.open) return;
  const mine = ++gpus.asking;
  const { error, rows, note } = await page.ask(page.request()).catch((failed) => ({ error: failed.message }));
  if (mine !== gpus.asking) return;
  details.querySelector("[data-slot=gpus-note]").textContent = error ?? note;
  details.querySelector(".scroll").hidden = Boolean(error);
  if (!error) details.querySelector("tbody").replaceChildren(...rows.map(rowOf));
}

function rowOf({ name, title, standing, left, speed, time }) {
  const row = document.createElement("tr");
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "small", textContent: title });
  button.dataset.gpu = name;
  const head = document.createElement("th");
  head.scope = "row";
  head.append(button);
  const verdict = document.createElement("td");
  verdict.dataset.standing = standing;
  verdict.textContent = standing;
  row.append(head, verdict, ...[left, speed, time].map(cellOf));
  return row;
}

function cellOf(text) {
  const cell = document.createElement("td");
  cell.textContent = text;
  return cell;
}
