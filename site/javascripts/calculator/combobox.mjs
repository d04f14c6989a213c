// A text field with a list of proposals: the pattern "Editable Combobox With List Autocomplete" of the ARIA Authoring
// Practices Guide.

/**
 * @typedef {object} Combobox
 * @property {HTMLInputElement} input
 * @property {HTMLElement} list
 * @property {HTMLElement[]} options all options; those that do not match are hidden
 * @property {number} active index of the highlighted option among the visible ones, or -1
 * @property {() => void} onChoice
 */

/**
 * @param {HTMLInputElement} input its aria-controls names a `ul[role=listbox]` of `li[role=option][data-value]`
 * @param {() => void} onChoice called after an option was chosen, and when the field loses the focus
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
  // Without this, a press on the list would take the focus from the field, and `blur` would close the list before the
  // click.
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
  // Half a name is a search, not a model. If the event reached the form, Python would refuse a model for each letter.
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

/**
 * Moves the highlight one option up or down, from either end to the other. Opens a closed list at the field's value.
 */
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

/** Shows only the options that match a text. */
function narrow(box, text) {
  const words = wordsOf(text);
  for (const option of box.options) option.hidden = !matches(option.textContent, words);
  box.list.querySelector("[data-slot=none]").hidden = shown(box).length > 0;
}

/** The words in a search text: "gpt-2 XL" -> ["gpt", "2", "xl"]. */
export function wordsOf(text) {
  return text.toLowerCase().split(/[^a-z0-9.]+/).filter(Boolean);
}

/** Whether an option contains every word; punctuation does not matter. */
export function matches(text, words) {
  const plain = text.toLowerCase();
  const bare = plain.replace(/[^a-z0-9.]/g, "");
  return words.every((word) => plain.includes(word) || bare.includes(word));
}

/** Highlights the option with an index among the visible ones; -1 highlights none. */
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
