// Up to four setups side by side. A pinned setup is stored as its query, so the address can contain all of them.

const MOST = 4;
const PARTS = ["weights", "gradients", "optimizer_state", "activations", "temporary"];

/**
 * @typedef {object} Pins
 * @property {object} page functions of the calculator's page: ask(request) -> answer; query() -> the current setup's
 *   query; requestOf(query); names(queries); refusal(error) -> the error with the page's labels; open(query) shows a
 *   setup in the form; changed(), which this calls when the list has changed
 * @property {HTMLTableElement} table has a column for each pinned setup
 * @property {HTMLButtonElement} button pins the current setup
 * @property {HTMLElement} note text beside the button
 * @property {string} usual the note while another setup can be pinned
 * @property {string[]} list the pinned setups' queries
 * @property {number} drawing number of drawings so far: answers for an earlier list are dropped
 */

/**
 * @param {HTMLElement} box the section that contains the button and the table
 * @param {object} page see Pins
 * @returns {Pins}
 */
export function makePins(box, page) {
  const note = box.querySelector("[data-slot=pin-note]");
  const pins = {
    page,
    table: box.querySelector("table"),
    button: box.querySelector("[data-slot=pin]"),
    note,
    usual: note.textContent,
    list: [],
    drawing: 0,
  };
  pins.button.addEventListener("click", () => pinCurrent(pins));
  return pins;
}

function pinCurrent(pins) {
  const query = pins.page.query().toString();
  if (pins.list.includes(query)) {
    pins.note.textContent = "This setup is pinned already.";
    return;
  }
  setPins(pins, [...pins.list, query]);
  pins.page.changed();
}

function unpin(pins, query) {
  setPins(pins, pins.list.filter((other) => other !== query));
  pins.page.changed();
  pins.button.focus();
}

/** Replaces the pinned setups; only the first four are kept. */
export function setPins(pins, queries) {
  const next = fitting(queries);
  if (JSON.stringify(next) === JSON.stringify(pins.list)) return;
  pins.list = next;
  draw(pins);
}

/** The queries that are shown: each once, the first four. */
export function fitting(queries) {
  return [...new Set(queries)].slice(0, MOST);
}

async function draw(pins) {
  const mine = ++pins.drawing;
  const answers = await Promise.all(pins.list.map((query) => answerOf(pins.page, query)));
  if (mine !== pins.drawing) return;
  const isFull = pins.list.length >= MOST;
  pins.button.disabled = isFull;
  pins.note.textContent = isFull ? "Four are pinned: that is all that fits." : pins.usual;
  pins.table.closest(".scroll").hidden = pins.list.length === 0;
  fillTable(pins, answers);
}

function answerOf(page, query) {
  return page.ask(page.requestOf(query)).catch((error) => ({ error: error.message }));
}

function fillTable(pins, answers) {
  const [head] = pins.table.tHead.rows;
  const names = pins.page.names(pins.list);
  head.replaceChildren(head.cells[0], ...pins.list.map((query, index) => heading(pins, query, answers[index], names[index])));
  const { rows } = pins.table.tBodies[0];
  for (const row of rows) {
    const cells = answers.map((answer) => text("td", answer.error ? "–" : (answer.texts[row.dataset.text] ?? "")));
    row.replaceChildren(row.cells[0], ...cells);
  }
  const most = largest(answers);
  answers.forEach((answer, index) => answer.pin && rows[0].cells[index + 1].prepend(bar(answer.pin, most)));
}

/** The bytes of the longest bar, to which all bars are scaled; 1 if there is none, to avoid a division by zero. */
export function largest(answers) {
  return Math.max(1, ...answers.map((answer) => answer.pin?.total ?? 0));
}

/** A column's heading: the setup's name, its buttons, and its command, folded. */
function heading(pins, query, { error, texts }, { model, others }) {
  const head = document.createElement("th");
  head.scope = "col";
  const whole = [model, ...others].join(", ");
  head.append(text("strong", model), text("small", others.join(" · ")));
  if (error) head.append(text("small", pins.page.refusal(error)));
  head.append(act("Open", `Open ${whole}`, () => pins.page.open(query)), act("Remove", `Remove ${whole}`, () => unpin(pins, query)));
  if (!error) head.append(command(texts.command, whole));
  return head;
}

function text(tag, content) {
  const made = document.createElement(tag);
  made.textContent = content;
  return made;
}

function command(line, name) {
  const folded = document.createElement("details");
  folded.className = "why";
  const summary = text("summary", "Command");
  summary.ariaLabel = `Command of ${name}`;
  folded.append(summary, text("code", line));
  return folded;
}

function act(label, name, onClick) {
  const button = text("button", label);
  button.type = "button";
  button.className = "small";
  button.ariaLabel = name;
  button.addEventListener("click", onClick);
  return button;
}

function bar(pin, most) {
  const box = document.createElement("div");
  box.className = "bar bar--pin";
  PARTS.forEach((part, index) => {
    const piece = document.createElement("span");
    piece.style.setProperty("--swatch", `var(--series-${index + 1})`);
    piece.style.flexBasis = `${(100 * pin.gpu[part]) / most}%`;
    box.append(piece);
  });
  return box;
}
