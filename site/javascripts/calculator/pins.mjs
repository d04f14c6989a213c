// Up to four setups side by side. A pinned setup is its query, so the address holds all of them.

const MOST = 4;
const PARTS = ["weights", "gradients", "optimizer_state", "activations", "temporary"];

/**
 * @typedef {object} Pins
 * @property {object} page what the calculator's page gives: ask(request) -> answer, requestOf(query), names(queries), the
 *   present query(), refusal(error) in the page's words, open(query), changed()
 * @property {HTMLTableElement} table a column for each pinned setup
 * @property {HTMLButtonElement} button pins the present setup
 * @property {HTMLElement} note what stands beside the button
 * @property {string} usual the note, while there is room for another one
 * @property {string[]} list the pinned setups' queries
 * @property {number} drawing how often the table was drawn: answers to an older list are dropped
 */

/**
 * @param {HTMLElement} box the section: button, table
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
  pins.button.addEventListener("click", () => pinPresent(pins));
  return pins;
}

function pinPresent(pins) {
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

/** Shows these queries, the first four of them. */
export function setPins(pins, queries) {
  const next = fitting(queries);
  if (JSON.stringify(next) === JSON.stringify(pins.list)) return;
  pins.list = next;
  draw(pins);
}

/** Of some queries, those that are shown: each once, and no more than there is room for. */
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

/** The longest bar's bytes; 1 where nothing is drawn, since the bars' lengths are shares of it. */
export function largest(answers) {
  return Math.max(1, ...answers.map((answer) => answer.pin?.total ?? 0));
}

/** A short name; the command is one step away. */
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
