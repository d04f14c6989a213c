// The calculator's form. It reads and writes its controls as texts, and shows which fields apply to the setup.
// setup.mjs interprets the texts.

import { ANOTHER_CARD, cardOf, completed, fitting, memoryOf, neighbours, queryFor, requestFor, valuesFrom } from "./setup.mjs";
import { inLabels, isNamed, namesOf } from "./words.mjs";

/** For an unknown model. */
const NOTHING_OWN = { placeholders: {} };

/**
 * @typedef {object} Form the form's state
 * @property {HTMLFormElement} element
 * @property {Record<string, Own>} models each model's own values, from calculator/page/models.py
 * @property {HTMLElement[]} controls the controls that make up a setup, in the page's order
 * @property {Field[]} fields the same controls as data for setup.mjs
 * @property {HTMLInputElement} card the memory of a GPU that the list does not name
 * @property {HTMLElement} configUsed button that is visible while a pasted config.json is in use
 * @property {HTMLElement} configNote says that the text in the field beside it is in use
 * @property {Values} defaults the setup that the page shows first
 * @property {Own | null} pasted the pasted model's own values
 * @property {object} shown which fields apply, as the form shows it now; see `fitting` in setup.mjs
 * @property {HTMLElement[]} marked the controls that the last refusal named
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
    configNote: element.querySelector('[data-slot="config-note"]'),
    defaults: {},
    pasted: null,
    shown: { own: NOTHING_OWN, impossible: {}, needless: {} },
    marked: [],
  };
  form.defaults = readForm(form);
  return form;
}

/** A control as data. Getters read what may change, and what is slow to look up and rarely needed. */
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

/** Every control's value as a text; an empty text means the model's own value. */
export function readForm(form) {
  return Object.fromEntries(form.controls.map((control) => [control.name, textOf(control, form.card)]));
}

function textOf(control, card) {
  if (control.dataset.kind === "switch") return String(control.checked);
  const text = control.value.trim();
  return control.name === "gpu" && text === ANOTHER_CARD ? cardOf(card.value.trim()) : text;
}

/** Sets all controls; those that `values` omits get their default. */
export function writeForm(form, values) {
  for (const control of form.controls) writeControl(control, values[control.name] ?? form.defaults[control.name], form.card);
  openChangedSections(form);
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

/**
 * Adds an unknown value to a list. An address may contain one; without an option for it the list would show another
 * value than the one that Python refuses.
 */
function offer(list, value) {
  if ([...list.options].some((option) => option.value === value)) return;
  list.add(new Option(`${value.slice(0, 40)} (unknown)`, value));
}

/** Opens the folded sections in which a control differs from its default, so that every changed value is visible. */
function openChangedSections(form) {
  const values = readForm(form);
  const changed = form.controls.filter(({ name }) => values[name] !== form.defaults[name]);
  for (const folded of form.element.querySelectorAll("details[data-fold]")) {
    if (changed.some((control) => folded.contains(control))) folded.open = true;
  }
}

/** The own values of a setup's model. An address may name a model such as "constructor", which every object has. */
function ownOf({ models, pasted }, { config, model }) {
  if (config) return pasted ?? NOTHING_OWN;
  return Object.hasOwn(models, model) ? models[model] : NOTHING_OWN;
}

/** The request to Python for the form's texts, or for others. */
export function requestOf(form, values = readForm(form)) {
  return requestFor(form.fields, values, ownOf(form, values));
}

/** The fields that differ from their defaults, as an address's query. */
export function queryOf(form, values = readForm(form)) {
  return queryFor(values, form.defaults);
}

/** All controls' texts for a query; a control that the query does not name has its default. */
export function valuesOf(form, query) {
  return { ...form.defaults, ...completed(valuesFrom(new URLSearchParams(query), form.defaults)) };
}

/** Short names for the setups of several queries; see `namesOf` in words.mjs. */
export function namesOfQueries(form, queries) {
  const setups = queries.map((query) => valuesOf(form, query));
  return namesOf(form.fields, setups, form.defaults, (values) => ownOf(form, values));
}

/** The requests that one change of the form would make; `changed` is the control that was changed last. */
export function neighboursOf(form, changed) {
  const now = { changed: changed?.name, card: form.card.value.trim(), ownOf: (values) => ownOf(form, values) };
  return neighbours(form.fields, readForm(form), now);
}

/** Uses the pasted model's own values, unless the reader has removed the model meanwhile. */
export function usePasted(form, own) {
  if (!form.element.elements.config.value) return;
  form.pasted = own;
  showFitting(form);
}

/** Shows which fields apply to the setup. It touches only elements that change, because it runs at each key press. */
export function showFitting(form, values = readForm(form)) {
  const { element, shown } = form;
  const next = fitting(values, ownOf(form, values));
  for (const [name, text] of differing(next.own.placeholders, shown.own.placeholders)) element.elements[name].placeholder = text;
  for (const [name, reason] of differing(next.impossible, shown.impossible)) block(element, name, reason);
  for (const [name, hidden] of differing(next.needless, shown.needless)) {
    element.querySelector(`[data-field="${name}"]`).hidden = hidden;
  }
  form.configUsed.hidden = !values.config;
  if (!values.config) form.configNote.textContent = "";
  form.shown = next;
}

/** Keeps the form in sight beside a long answer while the window has room for all of it; a longer one scrolls away. */
export function keepInSight({ element }, ended) {
  const update = () => {
    const top = parseFloat(getComputedStyle(element).top) || 0;
    element.classList.toggle("stays", top + element.offsetHeight <= innerHeight);
  };
  new ResizeObserver(update).observe(element);
  addEventListener("resize", update, { signal: ended });
}

/** Shortens texts that are more than the model accepts; returns a sentence on each of them. */
export function keepWithinLimits(form) {
  const most = Object.entries(ownOf(form, readForm(form)).most ?? {});
  const beyond = most.filter(([name, limit]) => Number(form.element.elements[name].value) > limit);
  return beyond.map(([name, limit]) => {
    const control = form.element.elements[name];
    const before = control.value;
    control.value = String(limit);
    return `“${control.labels[0].textContent}” is ${limit} now, the most that this model accepts, not ${before}.`;
  }).join(" ");
}

function differing(now, before) {
  return Object.entries(now).filter(([name, value]) => value !== before[name]);
}

/** Disables a control and puts the reason into its note; with an empty reason it enables the control again. */
function block(element, name, reason) {
  element.elements[name].disabled = Boolean(reason);
  const note = element.querySelector(`#note-${name}`);
  note.dataset.usual ??= note.textContent;
  note.textContent = reason || note.dataset.usual;
}

/** Python's refusal with the page's labels in place of keys. */
export function refusalOf(form, sentence) {
  return inLabels(sentence, form.fields, form.card.labels[0].textContent);
}

/**
 * Marks exactly the controls that a refusal names. If it names the GPU and the reader gave a card's memory, the
 * memory's field is marked.
 */
export function markRefused(form, sentence) {
  const named = form.controls.filter(({ name }) => isNamed(name, sentence));
  mark(form, named.map((control) => (control.name === "gpu" && control.value === ANOTHER_CARD ? form.card : control)));
}

/** Marks exactly these controls as those that a refusal is about. */
export function mark(form, controls) {
  for (const control of form.marked) control.removeAttribute("aria-invalid");
  form.marked = controls;
  for (const control of controls) control.setAttribute("aria-invalid", "true");
}
