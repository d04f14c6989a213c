// Up to four setups side by side. A pinned setup is its query, so the address holds all of them.

const MOST = 4;
const PARTS = ["weights", "gradients", "optimizer_state", "activations", "temporary"];

/**
 * @param {HTMLElement} box the section: button, table
 * @param {object} page ask(request) -> answer, request of a query, names of queries, the present query, refusal(error)
 *   in the page's words, open(query), changed()
 */
export function makePins(box, page) {
  const table = box.querySelector("table");
  const button = box.querySelector("[data-slot=pin]");
  const say = box.querySelector("[data-slot=pin-note]");
  const usual = say.textContent;
  let pins = [];
  let drawing = 0;

  button.addEventListener("click", () => {
    const query = page.query().toString();
    if (pins.includes(query)) {
      say.textContent = "This setup is pinned already.";
      return;
    }
    set([...pins, query]);
    page.changed();
  });

  /** Shows these queries, the first four of them. */
  function set(queries) {
    const next = [...new Set(queries)].slice(0, MOST);
    if (JSON.stringify(next) === JSON.stringify(pins)) return;
    pins = next;
    draw();
  }

  async function draw() {
    const mine = ++drawing;
    const answers = await Promise.all(
      pins.map((query) => page.ask(page.requestOf(new URLSearchParams(query))).catch((error) => ({ error: error.message }))),
    );
    if (mine !== drawing) return;
    button.disabled = pins.length >= MOST;
    say.textContent = button.disabled ? "Four are pinned: that is all that fits." : usual;
    table.closest(".scroll").hidden = pins.length === 0;
    const [head] = table.tHead.rows;
    const names = page.names(pins);
    head.replaceChildren(head.cells[0], ...pins.map((query, index) => heading(query, answers[index], names[index])));
    for (const row of table.tBodies[0].rows) {
      const cells = answers.map((answer) => text("td", answer.error ? "–" : answer.texts[row.dataset.text] ?? ""));
      row.replaceChildren(row.cells[0], ...cells);
    }
    const most = Math.max(1, ...answers.map((answer) => answer.pin?.total ?? 0));
    const bars = table.tBodies[0].rows[0];
    answers.forEach((answer, index) => answer.pin && bars.cells[index + 1].prepend(bar(answer.pin, most)));
  }

  /** A short name; the command is one step away. */
  function heading(query, answer, { model, others }) {
    const head = document.createElement("th");
    head.scope = "col";
    const whole = [model, ...others].join(", ");
    head.append(text("strong", model), text("small", others.join(" · ")));
    if (answer.error) head.append(text("small", page.refusal(answer.error)));
    const open = act("Open", `Open ${whole}`, () => page.open(query));
    const remove = act("Remove", `Remove ${whole}`, () => {
      set(pins.filter((other) => other !== query));
      page.changed();
      button.focus();
    });
    head.append(open, remove);
    if (!answer.error) head.append(command(answer.texts.command, whole));
    return head;
  }

  return { set, get: () => pins };
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
