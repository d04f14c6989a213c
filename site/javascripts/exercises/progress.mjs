// What a reader has solved, kept in this browser, and as a file that can be saved and loaded.

const KEY = "exercises";
const MOST_VARIANTS = 1_000_000;
const MOST_SOLVED = 50;
const LONGEST_FILE = 1_000_000;

/**
 * @typedef {object} Entry of one exercise
 * @property {number} variant the numbers that the reader sees
 * @property {number} tries answers that were judged
 * @property {number[]} solved variants that the reader has solved
 */

/** The kept progress, exercise -> Entry; empty if the browser keeps nothing or something else. */
export function load() {
  try {
    return readProgress(localStorage.getItem(KEY) ?? "") ?? {};
  } catch {
    return {};
  }
}

/** Keeps the progress; a browser that forbids it forgets it with the page. */
export function keep(progress) {
  try {
    localStorage.setItem(KEY, fileOf(progress));
  } catch {
    // The page works without it.
  }
}

export function fileOf(progress) {
  return JSON.stringify({ kind: "exercises", version: 1, exercises: progress });
}

/** The progress in a file's text; null if it is no such file. What no exercise could have written is left out. */
export function readProgress(text) {
  let file;
  try {
    file = text.length <= LONGEST_FILE ? JSON.parse(text) : null;
  } catch {
    return null;
  }
  if (file?.kind !== "exercises" || file.version !== 1 || typeof file.exercises !== "object" || !file.exercises) return null;
  const entries = Object.entries(file.exercises).map(([name, entry]) => [name, readEntry(entry)]);
  return Object.fromEntries(entries.filter(([name, entry]) => /^[a-z0-9-]{1,40}$/.test(name) && entry));
}

function readEntry(entry) {
  if (!isVariant(entry?.variant) || !Array.isArray(entry.solved)) return null;
  const tries = Number.isInteger(entry.tries) && entry.tries >= 0 ? entry.tries : 0;
  return { variant: entry.variant, tries, solved: [...new Set(entry.solved.filter(isVariant))].slice(-MOST_SOLVED) };
}

function isVariant(value) {
  return Number.isInteger(value) && value >= 1 && value <= MOST_VARIANTS;
}

/** Another variant than the current one. */
export function otherVariant(current, random = Math.random) {
  const drawn = 1 + Math.floor(random() * (MOST_VARIANTS - 1));
  return drawn < current ? drawn : drawn + 1;
}

/** An exercise's entry after an answer. */
export function afterAnswer(entry, right) {
  const solved = right ? [...new Set([...entry.solved, entry.variant])].slice(-MOST_SOLVED) : entry.solved;
  return { ...entry, tries: entry.tries + 1, solved };
}

/** Two progresses in one; the exercises of `more` bring the variants that the reader sees. */
export function merged(progress, more) {
  const all = { ...progress };
  for (const [name, entry] of Object.entries(more)) {
    const own = progress[name] ?? { tries: 0, solved: [] };
    const solved = [...new Set([...own.solved, ...entry.solved])].slice(-MOST_SOLVED);
    all[name] = { variant: entry.variant, tries: Math.max(own.tries, entry.tries), solved };
  }
  return all;
}
