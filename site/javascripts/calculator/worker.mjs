// The calculator's Python, in a worker: {id, ask, input} in, {id, answer} out. `ask` names a function of
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

self.onmessage = async ({ data: { id, ask, input } }) => {
  try {
    const answers = await started;
    self.postMessage({ id, answer: answers[ask](input) });
  } catch (error) {
    self.postMessage({ id, failed: String(error.message ?? error).trim().split("\n").at(-1) });
  }
};
