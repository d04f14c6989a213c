// The calculator's Python, in a worker: {id, setup} in, {id, answer} out, both as JSON strings made by the same
// function that made the answer in the page's HTML (site/builder/answer.py).

const runtime = new URL(self.name);
let answer = null;

const started = (async () => {
  const [{ loadPyodide }, program] = await Promise.all([
    import(new URL("pyodide.mjs", runtime)),
    fetch(new URL("calculator.zip", runtime)).then((response) => {
      if (!response.ok) throw new Error(`calculator.zip: ${response.status}`);
      return response.arrayBuffer();
    }),
  ]);
  const python = await loadPyodide({
    indexURL: runtime.href,
    packageBaseUrl: runtime.href,
    stdLibURL: new URL("stdlib.zip", runtime).href,
  });
  python.FS.writeFile("/calculator.zip", new Uint8Array(program));
  python.runPython('import sys; sys.path.append("/calculator.zip")');
  answer = python.pyimport("answer").answer;
})();

self.onmessage = async ({ data: { id, setup } }) => {
  try {
    await started;
    self.postMessage({ id, answer: answer(setup) });
  } catch (error) {
    self.postMessage({ id, failed: String(error.message ?? error) });
  }
};
