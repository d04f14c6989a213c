// Starts Python from an image of its memory (made by site/builder/assets/runtime.mjs), in a third of an ordinary
// start's time.
//
// The file contains the image's difference from a fresh instance's memory. Therefore `complete` must run after Pyodide
// has made the instance and before it copies the image in; replacing WebAssembly's functions for a moment allows that.
// `_loadSnapshot` is an undocumented option of Pyodide, whose version is pinned. If anything here fails, the caller
// starts Python in the ordinary way.

/** An empty zip: the image contains all imported modules, but Pyodide always fetches a standard library. */
const NO_LIBRARY = "data:application/zip;base64,UEsFBgAAAAAAAAAAAAAAAAAAAAAAAA==";

/** loadPyodide with the snapshot; rejects if the snapshot is missing, was changed, or does not fit this Pyodide. */
export async function startFromSnapshot(loadPyodide, { folder, lock, snapshot }) {
  const response = await fetch(new URL("snapshot.wasm", folder), { integrity: snapshot });
  if (!response.ok) throw new Error(`snapshot: ${response.status}`);
  const packed = await response.arrayBuffer();
  const [length, head, count] = new Uint32Array(packed, 0, 3);
  const runs = new Uint32Array(packed, 12, 2 * count);
  let from = 12 + 8 * count;
  const image = new Uint8Array(length);
  image.set(new Uint8Array(packed, from, head));
  from += head;

  function complete(memory) {
    image.set(new Uint8Array(memory.buffer), head);
    for (let run = 0; run < count; run++) {
      const [start, bytes] = [runs[2 * run], runs[2 * run + 1]];
      // Words of 4 bytes are possible: runs are whole pages, and every part before them is a multiple of 4 bytes long.
      const kept = new Uint32Array(image.buffer, start, bytes / 4);
      const change = new Uint32Array(packed, from, bytes / 4);
      for (let at = 0; at < kept.length; at++) kept[at] ^= change[at];
      from += bytes;
    }
  }

  return loadWatched(
    loadPyodide,
    {
      indexURL: folder,
      packageBaseUrl: folder,
      lockFileContents: lock,
      stdLibURL: NO_LIBRARY,
      _loadSnapshot: image,
    },
    complete,
  );
}

/**
 * loadPyodide that passes the fresh memory to `onFresh`, and that rejects if WebAssembly fails: loadPyodide alone would
 * then wait for ever.
 */
export function loadWatched(loadPyodide, options, onFresh = () => {}) {
  const usual = { instantiate: WebAssembly.instantiate, instantiateStreaming: WebAssembly.instantiateStreaming };
  const loaded = new Promise((resolve, reject) => {
    for (const name of Object.keys(usual)) {
      WebAssembly[name] = async (...given) => {
        try {
          const made = await usual[name].apply(WebAssembly, given);
          if (made.instance?.exports.memory) onFresh(made.instance.exports.memory);
          return made;
        } catch (error) {
          reject(error);
          throw error;
        }
      };
    }
    loadPyodide(options).then(resolve, reject);
  });
  return loaded.finally(() => Object.assign(WebAssembly, usual));
}
