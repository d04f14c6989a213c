// A text field that proposes: the pattern "editable combobox with list autocomplete" of the ARIA practices guide.

/**
 * @param {HTMLInputElement} input its aria-controls names a `ul[role=listbox]` of `li[role=option][data-value]`
 * @param {() => void} onChoice called after an option was taken
 */
export function makeCombobox(input, onChoice) {
  const list = document.getElementById(input.getAttribute("aria-controls"));
  const options = [...list.querySelectorAll("[role=option]")];
  let active = -1;

  const shown = () => options.filter((option) => !option.hidden);
  const isOpen = () => !list.hidden;

  /** Every word must stand somewhere in the option, whatever the punctuation. */
  function narrow(text) {
    const words = text.toLowerCase().split(/[^a-z0-9.]+/).filter(Boolean);
    for (const option of options) {
      const plain = option.textContent.toLowerCase();
      const bare = plain.replace(/[^a-z0-9.]/g, "");
      option.hidden = !words.every((word) => plain.includes(word) || bare.includes(word));
    }
    list.querySelector("[data-slot=none]").hidden = shown().length > 0;
  }

  function open(text) {
    if (input.disabled) return;
    narrow(text);
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
  }

  function close() {
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    activate(-1);
  }

  function activate(index) {
    active = index;
    for (const option of options) option.removeAttribute("aria-selected");
    const option = shown()[index];
    if (!option) return input.removeAttribute("aria-activedescendant");
    option.setAttribute("aria-selected", "true");
    input.setAttribute("aria-activedescendant", option.id);
    option.scrollIntoView({ block: "nearest" });
  }

  function take(option) {
    input.value = option.dataset.value;
    close();
    onChoice();
  }

  const known = () => options.some((option) => option.dataset.value === input.value.trim());

  input.addEventListener("click", () => (isOpen() ? close() : open("")));
  input.addEventListener("focus", () => input.select());
  input.addEventListener("input", (event) => {
    open(input.value);
    activate(shown().length ? 0 : -1);
    // Half a name is a search, no model yet.
    if (!known()) event.stopPropagation();
    else close();
  });
  input.addEventListener("keydown", (event) => {
    const count = shown().length;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const step = event.key === "ArrowDown" ? 1 : -1;
      if (!isOpen()) {
        open("");
        activate(shown().findIndex((option) => option.dataset.value === input.value.trim()));
      } else if (count) activate((active + step + count) % count);
    } else if (event.key === "Enter" && isOpen()) {
      event.preventDefault();
      if (shown()[active]) take(shown()[active]);
      else close();
    } else if (event.key === "Escape" && isOpen()) {
      event.preventDefault();
      close();
    }
  });
  input.addEventListener("blur", () => {
    close();
    onChoice();
  });
  // The field keeps the focus while the list is clicked.
  list.addEventListener("pointerdown", (event) => event.preventDefault());
  list.addEventListener("click", (event) => {
    const option = event.target.closest("[role=option]");
    if (option) take(option);
  });
}
