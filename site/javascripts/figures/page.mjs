// The figures of a page. The HTML contains each figure with its default values. Python is fetched when the reader first
// touches a figure, or at load if the address names values. The address contains the values that differ from the
// defaults, as `figure.control=value`.

import { askPython, startedBy } from "../python/python.mjs";
import { keepForOffline } from "../python/offline.mjs";
import { makeFigure, queryOf, readQuery } from "./figure.mjs";

const REMEMBERED_AFTER_MS = 300;

/**
 * @typedef {object} Figures the page's state
 * @property {object} runtime where to fetch the browser's Python; see python/python.mjs
 * @property {AbortController} ended aborted when the theme has swapped in another page
 * @property {Figure[]} figures see figure.mjs
 * @property {number} pause timer: when it ends, the address is updated
 */

/** Starts the page's figures; returns what stops them. */
export function start(root) {
  const page = { runtime: JSON.parse(root.dataset.runtime), ended: new AbortController(), figures: [], pause: 0 };
  const { signal } = page.ended;
  const given = {
    ask: (request) => ask(root, page.runtime, request),
    changed: () => rememberSoon(page),
    address: () => addressOf(page.figures),
    signal,
  };
  page.figures = [...document.querySelectorAll("main [data-figure]")].map((element) => makeFigure(element, given));
  addEventListener("popstate", () => readAddress(page), { signal });
  if (location.search) readAddress(page);
  return () => {
    clearTimeout(page.pause);
    page.ended.abort();
  };
}

async function ask(root, runtime, request) {
  const answer = await askPython(runtime, "figure", request);
  root.dataset.python = startedBy();
  keepForOffline(runtime);
  return answer;
}

/** Updates the address when the reader pauses: a dragged slider makes more changes a second than browsers allow. */
function rememberSoon(page) {
  clearTimeout(page.pause);
  page.pause = setTimeout(() => remember(page), REMEMBERED_AFTER_MS);
}

function remember({ figures, ended }) {
  const url = addressOf(figures);
  if (url !== location.href && !ended.signal.aborted) history.replaceState(history.state, "", url);
}

function addressOf(figures) {
  const url = new URL(location.href);
  url.search = new URLSearchParams(figures.flatMap(queryOf)).toString();
  return url.href;
}

function readAddress({ figures }) {
  const given = new URLSearchParams(location.search);
  for (const figure of figures) readQuery(figure, given);
}
