// Up to four setups side by side. A pinned setup is its query, so the address holds all of them.

const MOST = 4;
const PARTS = ["weights", "gradients", "optimizer_state", "activations", "temporary"];

/**
 * @param {HTMLElement} box the section: button, table
 * @param {object} page ask(request) -> answer, request of a query, the present query, open(query), changed()
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
    head.replaceChildren(head.cells[0], ...pins.map((query, index) => heading(query, answers[index])));
    for (const row of table.tBodies[0].rows) {
      const cells = answers.map((answer) => cell(answer.error ? "–" : answer.texts[row.dataset.text] ?? ""));
      row.replaceChildren(row.cells[0], ...cells);
    }
    const most = Math.max(1, ...answers.map((answer) => answer.pin?.total ?? 0));
    const bars = table.tBodies[0].rows[0];
    answers.forEach((answer, index) => answer.pin && bars.cells[index + 1].prepend(bar(answer.pin, most)));
  }

  function heading(query, answer) {
    const head = document.createElement("th");
    head.scope = "col";
    const name = document.createElement("span");
    name.textContent = answer.error ?? answer.texts.command.replace(/^.*python -m calculator (--config \/dev\/stdin)?/, answer.texts.command.startsWith("echo") ? "config.json " : "");
    const open = act("Open", `Open ${name.textContent}`, () => page.open(query));
    const remove = act("Remove", `Remove ${name.textContent}`, () => {
      set(pins.filter((other) => other !== query));
      page.changed();
      button.focus();
    });
    head.append(name, open, remove);
    return head;
  }

  return { set, get: () => pins };
}

function act(text, label, onClick) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "small";
  button.textContent = text;
  button.ariaLabel = label;
  button.addEventListener("click", onClick);
  return button;
}

function cell(text) {
  const made = document.createElement("td");
  made.textContent = text;
  return made;
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
