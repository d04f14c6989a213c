// The buttons beside the form: use a pasted config.json, copy a link, save files.

import { save } from "../parts/save.mjs";
import { frameOf } from "./address.mjs";
import { usePasted } from "./form.mjs";

const SHOWN_MS = 2000;

/**
 * @param {(name: string) => HTMLElement} slot
 * @param {Form} form
 * @param {object} page readWith(function, request, control) -> answer, or null if there is none; changed(), which this
 *   calls after a change of the form
 */
export function startPasting(slot, form, page) {
  const text = slot("config-text");
  text.addEventListener("input", () => (slot("config-note").textContent = ""));
  slot("config-use").addEventListener("click", async () => {
    slot("config-note").textContent = "";
    const answer = await page.readWith("read_config", { text: text.value }, text);
    if (!answer) return;
    slot("config-note").textContent = "It is in use.";
    form.element.elements.config.value = answer.config;
    usePasted(form, answer.own);
    page.changed();
  });
  slot("config-used").addEventListener("click", () => {
    form.element.elements.config.value = text.value = slot("config-note").textContent = "";
    page.changed();
    form.element.elements.model.focus();
  });
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
