// The one worker that runs the calculator's Python. Pages that the theme swaps share it, so that Python starts once a
// visit.

import { siteURL } from "../address.mjs";

const PATIENCE_MS = 20_000;

let worker = null;
let lastId = 0;
/** How Python started: "snapshot", "library", or "" before. */
let way = "";
/** Questions without an answer yet, by id. */
const waiting = new Map();

/** Parsed answers by question, the newest last: of questions that were asked before, or that were computed ahead. */
const known = new Map();
const MOST_KNOWN = 1000;

/**
 * Calls a function of calculator/browser.py; resolves to its parsed answer.
 *
 * Rejects with a sentence if Python cannot be started or does not answer in time; the next question starts it again.
 *
 * @param {object} runtime Python's files: folder, lock, snapshot; from the page's `data-runtime`
 * @param {string} ask the function's name
 * @param {object} request its argument
 * @param {number} [limit] milliseconds for a question that runs the reader's own program. Python is ended after these,
 *   and also if it fails: the program may have broken it.
 */
export function askPython(runtime, ask, request, limit) {
  const input = JSON.stringify(request);
  const question = `${ask} ${input}`;
  if (known.has(question)) return Promise.resolve(known.get(question));
  if (!worker) begin(runtime);
  const id = ++lastId;
  return new Promise((resolve, reject) => {
    waiting.set(id, { ask, question, limit, resolve, reject });
    if (way) watch(id);
    worker.postMessage({ id, ask, input });
  });
}

function learn(question, answer) {
  known.set(question, answer);
  if (known.size > MOST_KNOWN) known.delete(known.keys().next().value);
}

/** Makes Python compute answers to likely next requests while it has nothing else to do. */
export function answerAhead(requests) {
  const unknown = requests.map((request) => JSON.stringify(request)).filter((input) => !known.has(`answer ${input}`));
  if (way && unknown.length) worker.postMessage({ ahead: [...new Set(unknown)] });
}

/** "snapshot" or "library" once Python has started, and "" before. */
export function startedBy() {
  return way;
}

function begin(runtime) {
  const folder = new URL(runtime.folder, document.baseURI).href;
  worker = new Worker(siteURL("javascripts/python/worker.mjs"), {
    type: "module",
    name: JSON.stringify({ ...runtime, folder }),
  });
  worker.onmessage = ({ data }) => {
    if (data.started) onStarted(data.started);
    else if (data.ahead) for (const [input, answer] of data.ahead) learn(`answer ${input}`, JSON.parse(answer));
    else onAnswer(data);
  };
  worker.onerror = () => end("Python did not start");
}

/** Starts the questions' time limits. They do not run before, because a slow network may deliver Python late. */
function onStarted(started) {
  way = started;
  for (const id of waiting.keys()) watch(id);
}

function onAnswer({ id, answer, failed }) {
  const asked = waiting.get(id);
  waiting.delete(id);
  clearTimeout(asked?.timer);
  if (failed) {
    asked?.reject(new Error(failed));
    if (!way) end("Python did not start");
    else if (asked?.limit) end("Python was ended");
    return;
  }
  const parsed = JSON.parse(answer);
  if (asked?.ask === "answer") learn(asked.question, parsed);
  asked?.resolve(parsed);
}

function watch(id) {
  const asked = waiting.get(id);
  const patience = asked.limit ?? PATIENCE_MS;
  asked.timer ??= setTimeout(() => end(`no answer within ${patience / 1000} s`), patience);
}

function end(reason) {
  worker?.terminate();
  worker = null;
  way = "";
  const asked = [...waiting.values()];
  waiting.clear();
  for (const { reject, timer } of asked) {
    clearTimeout(timer);
    reject(new Error(reason));
  }
}
