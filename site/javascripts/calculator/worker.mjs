// The calculator's Python, in a worker: {id, ask, input} in, {id, answer} out; {ahead: inputs} in, nothing out. `ask` names a function of
// site/builder/answers, `input` and `answer` are its JSON strings: the same functions made the answer in the HTML.
// The worker's name is JSON: the folder of the runtime, Pyodide's lock and the snapshot's digest.

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
  return python.pyimport("answers");
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

/** Answers by question, the newest last. */
const known = new Map();
const MOST_KNOWN = 1000;
let ahead = [];

function answered(answers, ask, input) {
  const question = `${ask} ${input}`;
  const answer = known.get(question) ?? answers[ask](input);
  known.delete(question);
  known.set(question, answer);
  if (known.size > MOST_KNOWN) known.delete(known.keys().next().value);
  return answer;
}

/** What the reader may ask next, one at a time: a real question comes in between. */
async function answerAhead(answers) {
  const mine = ahead;
  while (mine === ahead && mine.length) {
    answered(answers, "answer", mine.shift());
    await new Promise((resolve) => setTimeout(resolve));
  }
}

self.onmessage = async ({ data }) => {
  ahead = data.ahead ?? [];
  try {
    const answers = await started;
    if (data.ahead) await answerAhead(answers);
    else self.postMessage({ id: data.id, answer: answered(answers, data.ask, data.input) });
  } catch (error) {
    self.postMessage({ id: data.id, failed: String(error.message ?? error).trim().split("\n").at(-1) });
  }
};
