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
  return { calculator: python.pyimport("calculator.browser"), collector };
})();

async function startFromLibrary(loadPyodide) {
  const response = await fetch(new URL("calculator.zip", runtime.folder));
  if (!response.ok) throw new Error(`calculator.zip: ${response.status}`);
  const python = await loadWatched(loadPyodide, {
    indexURL: runtime.folder,
    packageBaseUrl: runtime.folder,
    lockFileContents: runtime.lock,
    stdLibURL: new URL("stdlib.zip", runtime.folder).href,
  });
  python.FS.writeFile("/calculator.zip", new Uint8Array(await response.arrayBuffer()));
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
    self.postMessage({ id: data.id, answer: calculator[data.ask](data.input) });
  } catch (error) {
    self.postMessage({ id: data.id, failed: String(error.message ?? error).trim().split("\n").at(-1) });
  }
};
