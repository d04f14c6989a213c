// Delays the theme's search until the reader types the first letter. The theme sends the index of all pages to its
// search worker when a page loads, and processing it takes a tenth of a CPU second while the page starts; most readers
// never search. So the theme starts this worker instead, which keeps the index and starts the theme's worker at the
// first query. site/overrides/main.html puts this worker's address into the theme's configuration, with the theme's
// worker as the address's query.
//
// Messages are the theme's: {type, data}. An index is answered by "ready", a query by its result.

const [INDEX, READY, , RESULT] = [0, 1, 2, 3];
const THEME = new URL(`../assets/javascripts/workers/${location.search.slice(1)}`, location);

let index = null;
let query = null;
let theme = null;

onmessage = ({ data }) => {
  if (data.type === INDEX) {
    index = data;
    postMessage({ type: READY });
  } else if (theme && query === null) theme.postMessage(data);
  else if (theme || data.data.trim()) {
    query = data;
    theme ??= begin();
  } else postMessage({ type: RESULT, data: { items: [] } });
};

/** Starts the theme's worker with the index, and sends it the last query when it is ready. */
function begin() {
  const worker = new Worker(THEME);
  worker.onmessage = ({ data }) => {
    if (data.type !== READY) return postMessage(data);
    worker.postMessage(query);
    query = null;
  };
  worker.postMessage(index);
  return worker;
}
