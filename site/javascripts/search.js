// Search, from the first letter on. The theme hands its search worker the index of all pages as soon as a page is there;
// working that in takes a tenth of a second of a processor, while the page starts, and most readers search nothing. So
// this worker stands before the theme's: it keeps the index until something is asked. It is named by the site's
// configuration, its query names the theme's (site/overrides/main.html).
//
// Messages are the theme's: {type, data}, where an index is answered by "ready" and a query by its result.

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

/** The theme's worker with the index; what was asked last is asked when it is ready. */
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
