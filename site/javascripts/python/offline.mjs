// Keeps the large files that a page has used, so that it works without a network later.

const kept = new Set();

/**
 * Asks the service worker to keep the browser's Python and other files; each file is asked for once a visit.
 *
 * @param {object} runtime Python's files; see python.mjs
 * @param {string[]} more addresses of other files, relative to the page
 */
export async function keepForOffline(runtime, more = []) {
  if (!navigator.serviceWorker) return;
  const folder = new URL(runtime.folder, document.baseURI);
  const used = ["pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "snapshot.wasm"].map((name) => new URL(name, folder).href);
  const urls = [...used, ...more.map((address) => new URL(address, document.baseURI).href)].filter((url) => !kept.has(url));
  if (!urls.length) return;
  urls.forEach((url) => kept.add(url));
  const { active } = await navigator.serviceWorker.ready;
  active.postMessage({ keep: urls });
}
