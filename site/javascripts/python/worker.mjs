// The calculator's Python, in a worker. Messages:
//
//   {id, ask, input} -> {id, answer} or {id, failed}    `ask` names a function of calculator/browser.py; `input` and
//                                                       `answer` are JSON texts
//   {ahead: [input, ...]} -> {ahead: [[input, answer], ...]}    answers to likely next questions, when nothing is asked
//   nothing -> {started: "snapshot" or "library"}       Python has started
//
// The worker's name is JSON as well: the runtime's folder, Pyodide's lock and the snapshot's digest. As a message they
// would arrive only after the module has run; with the name Python starts at once.

import { loadWatched, startFromSnapshot } from "./snapshot.mjs";

const runtime = JSON.parse(self.name);

const started = (async () => {
  const { loadPyodide } = await import(new URL("pyodide.mjs", runtime.folder));
  let python;
  let way = "snapshot";
  try {
    python = await startFromSnapshot(loadPyodide, runtime);
  } catch {
    way = "library";
    python = await startFromLibrary(loadPyodide);
  }
  self.postMessage({ started: way });
  // A pass of Python's garbage collector takes longer than an answer. So it runs only when nothing is asked, and
  // `freeze` keeps it from visiting the same objects again; reference counts still free those.
  const collector = python.pyimport("gc");
  collector.disable();
  collector.freeze();
  return { python, calculator: python.pyimport("calculator.browser"), collector };
})();

/** Functions that need the exercises, which are in a file of their own. */
const OF_EXERCISES = new Set(["exercise", "grade", "ask_reader"]);
let exercises = null;

/** Adds the exercises to Python's package, once; after a failure the next question tries again. */
async function addExercises() {
  exercises ??= fetchExercises();
  try {
    await exercises;
  } catch (error) {
    exercises = null;
    throw error;
  }
}

async function fetchExercises() {
  const [{ python }, content] = await Promise.all([started, fetched("exercises.zip")]);
  python.FS.writeFile("/exercises.zip", content);
  python.runPython('import calculator; calculator.__path__.append("/exercises.zip/calculator")');
}

async function fetched(name) {
  const response = await fetch(new URL(name, runtime.folder));
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  return new Uint8Array(await response.arrayBuffer());
}

async function startFromLibrary(loadPyodide) {
  const content = await fetched("calculator.zip");
  const python = await loadWatched(loadPyodide, {
    indexURL: runtime.folder,
    packageBaseUrl: runtime.folder,
    lockFileContents: runtime.lock,
    stdLibURL: new URL("stdlib.zip", runtime.folder).href,
  });
  python.FS.writeFile("/calculator.zip", content);
  python.runPython('import sys; sys.path.append("/calculator.zip")');
  return python;
}

// Likely next questions are answered one per task, so that a question by the reader waits for one answer at most. The
// next task is started by a message to ourselves, because browsers delay nested timers by 4 ms. Answers are sent in
// batches: each message interrupts the page.
const MOST_AT_ONCE = 8;
const turn = new MessageChannel();
let ahead = [];
let answered = [];

turn.port1.onmessage = async () => {
  const { calculator, collector } = await started;
  const input = ahead.shift();
  try {
    if (input !== undefined) answered.push([input, calculator.answer(input)]);
  } catch {
    ahead = []; // if the reader asks the same question, its answer says what failed
  }
  if (answered.length && (answered.length === MOST_AT_ONCE || !ahead.length)) {
    self.postMessage({ ahead: answered });
    answered = [];
  }
  if (ahead.length) turn.port2.postMessage(null);
  else if (input !== undefined) {
    collector.collect();
    collector.freeze();
  }
};

self.onmessage = async ({ data }) => {
  if (data.ahead) {
    ahead = data.ahead;
    turn.port2.postMessage(null);
    return;
  }
  if (data.ask === "answer") ahead = [];
  try {
    const { calculator } = await started;
    if (OF_EXERCISES.has(data.ask)) await addExercises();
    self.postMessage({ id: data.id, answer: calculator[data.ask](data.input) });
  } catch (error) {
    self.postMessage({ id: data.id, failed: String(error.message ?? error).trim().split("\n").at(-1) });
  }
};
