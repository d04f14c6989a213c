// Starts the interactive parts of a page. Each part is a module of its own, fetched only for pages that have the part.
// The theme swaps pages without reloading and announces that through document$, so parts must also be stopped.

import { siteURL } from "./address.mjs";
import { addCopyButtons } from "./copy.mjs";
import { startTerms } from "./terms.mjs";

const PARTS = {
  calculator: () => import("./calculator/page.mjs"),
  dashboard: () => import("./dashboard/page.mjs"),
  exercises: () => import("./exercises/page.mjs"),
  figures: () => import("./figures/page.mjs"),
  glance: () => import("./home/glance.mjs"),
  join: () => import("./join/page.mjs"),
  runs: () => import("./runs/list.mjs"),
  replay: () => import("./replay.mjs"),
  study: () => import("./exercises/page.mjs"),
  timeline: () => import("./home/timeline.mjs"),
  together: () => import("./together/page.mjs"),
  volunteer: () => import("./volunteer/page.mjs"),
};

/** Pauses before a module is asked for again: a network may fail for a moment. */
const AGAIN_AFTER_MS = [500, 2000, 5000];

const running = new Map();

startTerms();

// An exercise makes its blocks of code when it is opened; they get their buttons when the reader unfolds its solution.
document.addEventListener("toggle", ({ target }) => addCopyButtons(target), { capture: true });

document$.subscribe(async () => {
  addCopyButtons(document.querySelector("main"));
  if (namesRun(location) || [...document.links].some(namesRun)) {
    import("./runs/links.mjs").then(({ keepChoice }) => keepChoice(document.links, location.href));
  }
  for (const [element, stop] of running) {
    if (!element.isConnected) {
      running.delete(element);
      stop();
    }
  }
  for (const element of document.querySelectorAll("[data-part]")) {
    if (running.has(element)) continue;
    running.set(element, () => {});
    const module = await loaded(element.dataset.part);
    if (!module) tellMissing(element);
    const stop = module?.start(element) ?? (() => {});
    if (element.isConnected) running.set(element, stop);
    else {
      running.delete(element);
      stop();
    }
  }
});

/** Whether an address names a run, see runs/address.mjs; most pages never need to know more of runs. */
function namesRun({ search }) {
  return new URLSearchParams(search).has("run");
}

/** A part's module; undefined if it cannot be loaded. */
async function loaded(part) {
  for (const pause of [...AGAIN_AFTER_MS, null]) {
    try {
      return await PARTS[part]();
    } catch (error) {
      if (pause === null) console.warn(error);
      else await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }
}

/**
 * Shows a message with a button that reloads the page: some browsers never ask again for a module that failed. Also shows
 * what the missing module would have made of the page's <noscript>, such as hints and solutions of exercises.
 */
function tellMissing(element) {
  const line = document.createElement("p");
  const button = document.createElement("button");
  line.className = "refusal";
  line.role = "alert";
  line.textContent = "A script of this page could not be loaded, so its controls do not work. ";
  button.type = "button";
  button.className = "small";
  button.textContent = "Reload the page";
  button.addEventListener("click", () => location.reload());
  line.append(button);
  element.before(line);
  for (const kept of document.querySelectorAll("main noscript")) kept.outerHTML = kept.innerHTML;
}

// Announces a change of colours to the charts and to the browser's own bars. The first colours are set elsewhere,
// before anything is painted (overrides/partials/javascripts/palette.html). The bars get theirs after the first frame,
// because reading a computed style earlier would delay it.
new MutationObserver(() => document.dispatchEvent(new CustomEvent("palette"))).observe(document.body, {
  attributeFilter: ["data-md-color-scheme"],
});
const bars = document.createElement("meta");
bars.name = "theme-color";
function colourBars() {
  bars.content = getComputedStyle(document.body).getPropertyValue("--paper");
  if (!bars.isConnected) document.head.append(bars);
}
document.addEventListener("palette", colourBars);
requestAnimationFrame(() => setTimeout(colourBars));

// The service worker shows without a network what the reader has opened. It is registered late, when the page has
// loaded what it needs. A browser that forbids service workers loses only that.
const KEPT_AFTER_MS = 3000;
navigator.serviceWorker?.addEventListener("controllerchange", keepPage);
setTimeout(() => {
  navigator.serviceWorker?.register(siteURL("service-worker.js")).catch(() => {});
}, KEPT_AFTER_MS);

/** Gives a new service worker what this page has loaded without it; what the page loads from now on passes through it. */
function keepPage() {
  const loaded = performance.getEntriesByType("resource").map(({ name }) => name);
  navigator.serviceWorker.controller?.postMessage({ keep: [location.href, ...loaded].filter(isOurs) });
}

function isOurs(href) {
  return href.startsWith(siteURL(""));
}
