// The form: its controls are read as texts and written from them, and it shows what applies to the setup.
// What the texts mean is in setup.mjs.

import { ANOTHER_CARD, cardOf, fitting, memoryOf, neighbours, queryFor, requestFor, valuesFrom } from "./setup.mjs";
import { inLabels, isNamed, namesOf } from "./words.mjs";

/** Of a model that is not known. */
const NOTHING_OWN = { placeholders: {} };

/**
 * @typedef {object} Form the form's state
 * @property {HTMLFormElement} element
 * @property {Record<string, Own>} models each model's own values, as calculator/page/models.py gives them
 * @property {HTMLElement[]} controls those that make a setup, in the page's order
 * @property {Field[]} fields the same controls, as setup.mjs knows them
 * @property {HTMLInputElement} card the memory of a card that the list of GPUs does not name
 * @property {HTMLElement} configUsed the button that is there while a pasted config.json is in use
 * @property {Values} defaults the page's first setup
 * @property {Own | null} pasted what the pasted model brings along
 * @property {object} shown what applies, as the form shows it now; see `fitting` in setup.mjs
 * @property {HTMLElement[]} marked controls that the last refusal named
 */

/** @returns {Form} */
export function makeForm(element, models) {
  const controls = [...element.querySelectorAll("[data-kind]:not([data-kind=part])")];
  const form = {
    element,
    models,
    controls,
    fields: controls.map(fieldOf),
    card: element.elements.card,
    configUsed: element.querySelector('[data-slot="config-used"]'),
    defaults: {},
    pasted: null,
    shown: { own: NOTHING_OWN, impossible: {}, needless: {} },
    marked: [],
  };
  form.defaults = readForm(form);
  return form;
}

/** A control as data. What may change, and what takes the browser some time to find, is looked up when it is asked for. */
function fieldOf(control) {
  const { kind, usual } = control.dataset;
  return {
    name: control.name,
    kind,
    usual,
    get placeholder() {
      return control.placeholder;
    },
    get label() {
      return control.labels[0]?.textContent;
    },
    get options() {
      return kind === "search" ? proposals(control) : control.options;
    },
  };
}

function proposals(control) {
  const list = document.getElementById(control.getAttribute("aria-controls"));
  return [...list.querySelectorAll("[data-value]")].map(({ dataset }) => ({ value: dataset.value }));
}

/** Every control's value as text; an empty text asks for the model's own. */
export function readForm(form) {
  return Object.fromEntries(form.controls.map((control) => [control.name, textOf(control, form.card)]));
}

function textOf(control, card) {
  if (control.dataset.kind === "switch") return String(control.checked);
  const text = control.value.trim();
  return control.name === "gpu" && text === ANOTHER_CARD ? cardOf(card.value.trim()) : text;
}

/** Sets the controls; those that `values` leaves out get the page's first value. */
export function writeForm(form, values) {
  for (const control of form.controls) writeControl(control, values[control.name] ?? form.defaults[control.name], form.card);
  unfoldChanged(form);
  showFitting(form);
}

function writeControl(control, value, card) {
  const memory = control.name === "gpu" ? memoryOf(value) : null;
  if (control.dataset.kind === "switch") control.checked = value === "true";
  else if (memory !== null) [control.value, card.value] = [ANOTHER_CARD, memory];
  else {
    if (control.tagName === "SELECT") offer(control, value);
    control.value = value;
  }
}

/** A list can only show what it offers: an address may name something else, which Python then refuses with a sentence. */
function offer(list, value) {
  if ([...list.options].some((option) => option.value === value)) return;
  list.add(new Option(`${value.slice(0, 40)} (unknown)`, value));
}

/** What an address sets is in sight. */
function unfoldChanged(form) {
  const values = readForm(form);
  const changed = form.controls.filter(({ name }) => values[name] !== form.defaults[name]);
  for (const folded of form.element.querySelectorAll("details[data-fold]")) {
    if (changed.some((control) => folded.contains(control))) folded.open = true;
  }
}

/** What the model of a setup brings along. */
function ownOf(form, values) {
  return (values.config ? form.pasted : form.models[values.model]) ?? NOTHING_OWN;
}

/** The request to Python of the form, or of other texts. */
export function requestOf(form, values = readForm(form)) {
  return requestFor(form.fields, values, ownOf(form, values));
}

/** What differs from the page's first setup, as a query of an address. */
export function queryOf(form, values = readForm(form)) {
  return queryFor(values, form.defaults);
}

/** The texts of all controls that a query stands for. */
export function valuesOf(form, query) {
  return { ...form.defaults, ...valuesFrom(new URLSearchParams(query), form.defaults) };
}

/** Short names of the setups of some queries; see `namesOf` in words.mjs. */
export function namesOfQueries(form, queries) {
  const setups = queries.map((query) => valuesOf(form, query));
  return namesOf(form.fields, setups, form.defaults, (values) => ownOf(form, values));
}

/** The requests that are one change away from the form; `changed` is the control that was changed last. */
export function neighboursOf(form, changed) {
  const now = { changed: changed?.name, card: form.card.value.trim(), ownOf: (values) => ownOf(form, values) };
  return neighbours(form.fields, readForm(form), now);
}

/** Takes over what the pasted model brings along. */
export function usePasted(form, own) {
  if (!form.element.elements.config.value) return;
  form.pasted = own;
  showFitting(form);
}

/** Shows what applies to the setup. Only what differs from what is shown is looked up in the document. */
export function showFitting(form, values = readForm(form)) {
  const { element, shown } = form;
  const next = fitting(values, ownOf(form, values));
  for (const [name, text] of differing(next.own.placeholders, shown.own.placeholders)) element.elements[name].placeholder = text;
  for (const [name, reason] of differing(next.impossible, shown.impossible)) block(element, name, reason);
  for (const [name, hidden] of differing(next.needless, shown.needless)) {
    element.querySelector(`[data-field="${name}"]`).hidden = hidden;
  }
  form.configUsed.hidden = !values.config;
  form.shown = next;
}

function differing(now, before) {
  return Object.entries(now).filter(([name, value]) => value !== before[name]);
}

/** A control that cannot be combined with the rest is disabled, and its note says why; without a reason it is usable. */
function block(element, name, reason) {
  element.elements[name].disabled = Boolean(reason);
  const note = element.querySelector(`#note-${name}`);
  note.dataset.usual ??= note.textContent;
  note.textContent = reason || note.dataset.usual;
}

/** A refusal in the page's words. */
export function refusalOf(form, sentence) {
  return inLabels(sentence, form.fields, form.card.labels[0].textContent);
}

/** Marks the controls that a refusal names, and no others. For a card by its memory, that is the memory. */
export function markRefused(form, sentence) {
  for (const control of form.marked) control.removeAttribute("aria-invalid");
  const named = form.controls.filter(({ name }) => isNamed(name, sentence));
  form.marked = named.map((control) => (control.name === "gpu" && control.value === ANOTHER_CARD ? form.card : control));
  for (const control of form.marked) control.setAttribute("aria-invalid", "true");
}
