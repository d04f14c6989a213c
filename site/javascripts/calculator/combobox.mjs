// A text field that proposes: the pattern "editable combobox with list autocomplete" of the ARIA practices guide.

/**
 * @typedef {object} Combobox
 * @property {HTMLInputElement} input
 * @property {HTMLElement} list
 * @property {HTMLElement[]} options all of the list's; those that do not match are hidden
 * @property {number} active place of the proposed option among the shown ones, or -1
 * @property {() => void} onChoice
 */

/**
 * @param {HTMLInputElement} input its aria-controls names a `ul[role=listbox]` of `li[role=option][data-value]`
 * @param {() => void} onChoice called after an option was taken
 */
export function makeCombobox(input, onChoice) {
  const list = document.getElementById(input.getAttribute("aria-controls"));
  const box = { input, list, options: [...list.querySelectorAll("[role=option]")], active: -1, onChoice };
  input.addEventListener("click", () => (isOpen(box) ? close(box) : open(box, "")));
  input.addEventListener("focus", () => input.select());
  input.addEventListener("input", (event) => onInput(box, event));
  input.addEventListener("keydown", (event) => KEYS[event.key]?.(box, event));
  input.addEventListener("blur", () => {
    close(box);
    onChoice();
  });
  // The field keeps the focus while the list is clicked.
  list.addEventListener("pointerdown", (event) => event.preventDefault());
  list.addEventListener("click", ({ target }) => {
    const option = target.closest("[role=option]");
    if (option) take(box, option);
  });
}

const shown = ({ options }) => options.filter((option) => !option.hidden);
const isOpen = ({ list }) => !list.hidden;
const isValueOf = ({ input }) => (option) => option.dataset.value === input.value.trim();

function onInput(box, event) {
  open(box, box.input.value);
  activate(box, shown(box).length ? 0 : -1);
  // Half a name is a search, no model yet: the form does not hear of it.
  if (!box.options.some(isValueOf(box))) event.stopPropagation();
  else close(box);
}

const KEYS = {
  ArrowDown: (box, event) => step(box, event, 1),
  ArrowUp: (box, event) => step(box, event, -1),
  Enter: (box, event) => {
    if (!isOpen(box)) return;
    event.preventDefault();
    const option = shown(box)[box.active];
    if (option) take(box, option);
    else close(box);
  },
  Escape: (box, event) => {
    if (!isOpen(box)) return;
    event.preventDefault();
    close(box);
  },
};

/** One option up or down, round and round; a closed list opens at the present value. */
function step(box, event, by) {
  event.preventDefault();
  if (!isOpen(box)) {
    open(box, "");
    activate(box, shown(box).findIndex(isValueOf(box)));
    return;
  }
  const count = shown(box).length;
  if (count) activate(box, (box.active + by + count) % count);
}

function open(box, text) {
  if (box.input.disabled) return;
  narrow(box, text);
  box.list.hidden = false;
  box.input.setAttribute("aria-expanded", "true");
}

function close(box) {
  box.list.hidden = true;
  box.input.setAttribute("aria-expanded", "false");
  activate(box, -1);
}

/** Shows the options that match a text. */
function narrow(box, text) {
  const words = wordsOf(text);
  for (const option of box.options) option.hidden = !matches(option.textContent, words);
  box.list.querySelector("[data-slot=none]").hidden = shown(box).length > 0;
}

/** What a reader types, as words: "gpt-2 XL" -> ["gpt", "2", "xl"]. */
export function wordsOf(text) {
  return text.toLowerCase().split(/[^a-z0-9.]+/).filter(Boolean);
}

/** Every word must stand somewhere in the option, whatever the punctuation. */
export function matches(text, words) {
  const plain = text.toLowerCase();
  const bare = plain.replace(/[^a-z0-9.]/g, "");
  return words.every((word) => plain.includes(word) || bare.includes(word));
}

/** Proposes the option at a place among those shown; at -1 none. */
function activate(box, index) {
  box.active = index;
  for (const option of box.options) option.removeAttribute("aria-selected");
  const option = shown(box)[index];
  if (!option) return box.input.removeAttribute("aria-activedescendant");
  option.setAttribute("aria-selected", "true");
  box.input.setAttribute("aria-activedescendant", option.id);
  option.scrollIntoView({ block: "nearest" });
}

function take(box, option) {
  box.input.value = option.dataset.value;
  close(box);
  box.onChoice();
}
