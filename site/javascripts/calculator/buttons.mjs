// The buttons beside the form: use a pasted config.json, copy a link, save files.

import { frameOf } from "./address.mjs";
import { usePasted } from "./form.mjs";

const SHOWN_MS = 2000;

/**
 * @param {(name: string) => HTMLElement} slot
 * @param {Form} form
 * @param {object} page askPython(function, request) -> answer, or {error}; changed(), which this calls after a change
 *   of
 *   the form
 */
export function startPasting(slot, form, page) {
  const text = slot("config-text");
  slot("config-use").addEventListener("click", async () => {
    const { error, config, own } = await page.askPython("read_config", { text: text.value });
    showReading(slot, error);
    if (error) return;
    form.element.elements.config.value = config;
    usePasted(form, own);
    page.changed();
  });
  slot("config-used").addEventListener("click", () => {
    form.element.elements.config.value = text.value = slot("config-note").textContent = "";
    page.changed();
    form.element.elements.model.focus();
  });
}

/** Shows whether a pasted text was accepted. A refused one gets the focus, so that a screen reader reads the reason. */
function showReading(slot, error) {
  const text = slot("config-text");
  slot("config-note").textContent = error ?? "It is in use.";
  text.setAttribute("aria-invalid", Boolean(error));
  if (error) text.focus();
}

export function startSharing(slot) {
  copyAt(slot("share"), () => location.href, "Link copied", "The link is in the address bar");
  copyAt(slot("embed"), () => frameOf(location.href), "Code copied", "Your browser does not let the page copy");
}

/** Copies a text when a button is pressed, and says for a while whether that worked. */
function copyAt(button, text, done, failed) {
  const usual = button.textContent;
  button.addEventListener("click", async () => {
    const copied = navigator.clipboard.writeText(text());
    button.textContent = await copied.then(() => done, () => failed);
    setTimeout(() => (button.textContent = usual), SHOWN_MS);
  });
}

/**
 * @param {(name: string) => HTMLElement} slot
 * @param {object} page askExport() -> {json, csv, svg}, or {error}; say(sentence)
 */
export function startSaving(slot, page) {
  for (const kind of ["json", "csv", "svg"]) {
    slot(`save-${kind}`).addEventListener("click", async () => {
      const answer = await page.askExport();
      if (answer.error) page.say(answer.error);
      else save(`memory.${kind}`, answer[kind]);
    });
  }
}

function save(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text]));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
