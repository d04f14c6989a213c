// The page of exercises. Python draws questions and judges answers; the HTML has each exercise with the numbers of its
// first variant, so Python is fetched only when the reader answers, or asks for other numbers. Field, hints and solution
// are text in a <noscript> until the reader opens the exercise (site/builder/exercises/listed.py).

import { keepForOffline } from "../python/offline.mjs";
import { askPython } from "../python/python.mjs";
import { save } from "../parts/save.mjs";
import { afterAnswer, fileOf, keep, load, merged, otherVariant, readProgress } from "./progress.mjs";
import { startStudy } from "./study.mjs";

const FIRST = 1;
/** Python is ended if a reader's program, or any other answer, takes longer. */
const LIMIT_MS = { program: 5000, other: 20_000 };
const STARTING = "Starting Python in your browser …";
const NOTE_AFTER_MS = 150;

/**
 * @typedef {object} Page
 * @property {object} runtime Python's files; see python/python.mjs
 * @property {(which: string) => HTMLElement} slot
 * @property {object} progress see progress.mjs
 * @property {Exercise[]} exercises
 * @property {AbortController} ended aborted when the theme has swapped in another page
 *
 * @typedef {object} Exercise
 * @property {HTMLDetailsElement} element
 * @property {string} name
 * @property {string} kind "number", "choice" or "program"
 * @property {number} shown the variant whose question is shown
 * @property {boolean} busy whether Python works on it
 */

/** Starts the page of exercises, or the quiz of a study: in one file, as both need the same modules. */
export function start(root) {
  return root.dataset.part === "study" ? startStudy(root) : startExercises(root);
}

function startExercises(root) {
  const slot = (which) => root.querySelector(`[data-slot="${which}"]`);
  const page = { runtime: JSON.parse(root.dataset.runtime), slot, progress: load(), exercises: [], ended: new AbortController() };
  page.exercises = [...document.querySelectorAll("main [data-exercise]")].map((element) => makeExercise(page, element));
  const { signal } = page.ended;
  slot("export").addEventListener("click", () => save("exercises.json", fileOf(page.progress)));
  slot("import").addEventListener("click", () => slot("file").click());
  slot("file").addEventListener("change", () => importFile(page));
  slot("forget").addEventListener("click", () => forget(page));
  addEventListener("hashchange", openNamed, { signal });
  addEventListener("beforeprint", () => page.exercises.forEach((one) => makeFields(page, one)), { signal });
  showProgress(page);
  openNamed();
  return () => page.ended.abort();
}

function makeExercise(page, element) {
  const { exercise: name, kind } = element.dataset;
  const exercise = { element, name, kind, shown: FIRST, busy: false };
  element.addEventListener("toggle", () => element.open && open(page, exercise));
  if (element.open) open(page, exercise);
  return exercise;
}

function open(page, exercise) {
  makeFields(page, exercise);
  draw(page, exercise);
}

/** Makes the fields, hints and solution of an exercise, once. */
function makeFields(page, exercise) {
  const kept = exercise.element.querySelector("noscript");
  if (!kept) return;
  kept.outerHTML = kept.innerHTML;
  const slot = slotOf(exercise);
  slot("form").addEventListener("submit", (event) => {
    event.preventDefault();
    check(page, exercise);
  });
  slot("form").addEventListener("keydown", indent);
  slot("again").addEventListener("click", () => redraw(page, exercise));
}

function slotOf({ element }) {
  return (which) => element.querySelector(`[data-slot="${which}"]`);
}

/** Opens the exercise that the address names. */
function openNamed() {
  const named = document.getElementById(location.hash.slice(1));
  if (!named?.dataset.exercise) return;
  named.open = true;
  named.scrollIntoView();
}

function entryOf(page, { name }) {
  return page.progress[name] ?? { variant: FIRST, tries: 0, solved: [] };
}

/** Shows the question with the numbers that the reader had last, if others are shown. */
async function draw(page, exercise) {
  const { variant } = entryOf(page, exercise);
  if (variant === exercise.shown || exercise.busy) return;
  const answer = await ask(page, exercise, "exercise", { name: exercise.name, variant });
  if (!answer) return;
  const slot = slotOf(exercise);
  for (const part of ["question", "field", "help"]) slot(part).innerHTML = answer[part];
  exercise.shown = variant;
  say(exercise, "The numbers of the question have changed.");
}

function redraw(page, exercise) {
  if (exercise.busy) return;
  const entry = entryOf(page, exercise);
  page.progress[exercise.name] = { ...entry, variant: otherVariant(entry.variant) };
  keep(page.progress);
  draw(page, exercise);
}

async function check(page, exercise) {
  if (exercise.busy) return;
  const variant = exercise.shown;
  const verdict = await ask(page, exercise, "grade", { name: exercise.name, variant, answer: answerOf(exercise) });
  if (!verdict) return;
  page.progress[exercise.name] = afterAnswer({ ...entryOf(page, exercise), variant }, verdict.right);
  keep(page.progress);
  say(exercise, `${verdict.right ? "Right." : "Not yet."} ${verdict.sentence}`, verdict.right ? "right" : "wrong");
  showProgress(page);
}

/** The answer as text: what is typed, or the index of the chosen option. */
function answerOf({ element, name }) {
  const field = element.querySelector("form").elements[name];
  return field?.value ?? "";
}

/** Python's answer; null if it refused or failed, which the exercise then says. */
async function ask(page, exercise, what, request) {
  const runs = what === "grade" && exercise.kind === "program";
  exercise.busy = true;
  const note = setTimeout(() => say(exercise, STARTING), NOTE_AFTER_MS);
  try {
    const answer = await askPython(page.runtime, what, request, LIMIT_MS[runs ? "program" : "other"]);
    keepForOffline(page.runtime, [`${page.runtime.folder}exercises.zip`]);
    clearTimeout(note);
    if (answer.error) say(exercise, answer.error, "refused");
    else if (!page.ended.signal.aborted) return answer;
  } catch (error) {
    clearTimeout(note);
    const why = runs ? `Your program was ended (${error.message}). Is there a loop that never ends?` : `Python failed: ${error.message}.`;
    say(exercise, `${why} Python starts anew when you check again.`, "refused");
  } finally {
    exercise.busy = false;
  }
  return null;
}

function say(exercise, sentence, verdict = "") {
  const place = slotOf(exercise)("verdict");
  place.dataset.verdict = verdict;
  place.textContent = sentence;
}

/** Enter keeps the indentation of a program's line, and adds to it after a colon: Tab is for leaving the field. */
function indent(event) {
  const { target, key } = event;
  if (key !== "Enter" || target.tagName !== "TEXTAREA" || event.isComposing || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  const line = target.value.slice(0, target.selectionStart).split("\n").at(-1);
  const more = line.trimEnd().endsWith(":") ? "    " : "";
  target.setRangeText(`\n${line.match(/^ */)[0]}${more}`, target.selectionStart, target.selectionEnd, "end");
}

function showProgress(page) {
  const solved = new Set(page.exercises.filter((one) => entryOf(page, one).solved.length).map((one) => one.element));
  for (const { element, ...exercise } of page.exercises) {
    const count = entryOf(page, exercise).solved.length;
    const state = element.querySelector('[data-slot="state"]');
    state.textContent = !count ? "" : count === 1 ? "✓ solved" : `✓ solved ${count} times`;
  }
  for (const group of document.querySelectorAll("main [data-subject]")) {
    const all = [...group.querySelectorAll("[data-exercise]")];
    const done = all.filter((one) => solved.has(one)).length;
    group.querySelector('[data-slot="count"]').textContent = `${done} of ${all.length} solved`;
  }
  page.slot("total").textContent = `You have solved ${solved.size} of ${page.exercises.length}.`;
}

async function importFile(page) {
  const input = page.slot("file");
  const [file] = input.files;
  if (!file) return;
  const more = readProgress(await file.text());
  input.value = "";
  page.slot("message").textContent = more ? "Loaded." : "This file has no saved progress; choose one that this page has saved.";
  if (!more) return;
  page.progress = merged(page.progress, more);
  changed(page);
}

function forget(page) {
  page.progress = {};
  page.slot("message").textContent = "Forgotten.";
  changed(page);
}

/** Shows a progress that did not come from answers; open exercises get its numbers. */
function changed(page) {
  keep(page.progress);
  showProgress(page);
  for (const exercise of page.exercises) if (exercise.element.open) draw(page, exercise);
}
