// Starts the living parts of a page. Each is a module of its own, fetched only where a page has that part.
// The theme swaps pages without reloading (document$ tells), so a part is also stopped when its page goes.

import { addCopyButtons } from "./copy.mjs";
import { startTerms } from "./terms.mjs";

const PARTS = {
  calculator: () => import("./calculator/page.mjs"),
  dashboard: () => import("./dashboard/page.mjs"),
  figures: () => import("./figures/page.mjs"),
  glance: () => import("./glance.mjs"),
  join: () => import("./join/page.mjs"),
};

/** A network that fails for a moment is asked again, after these. */
const AGAIN_AFTER_MS = [500, 2000, 5000];

const running = new Map();

startTerms();

document$.subscribe(async () => {
  addCopyButtons(document.querySelector("main"));
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

/** A part's module; undefined where it cannot be had. */
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

/** Some browsers ask no second time for a module that failed: then a reload does. */
function tellMissing(element) {
  const line = document.createElement("p");
  const button = document.createElement("button");
  line.className = "refusal";
  line.role = "alert";
  line.textContent = "A part of this page could not be loaded, so that nothing can be set here. ";
  button.type = "button";
  button.className = "small";
  button.textContent = "Load the page again";
  button.addEventListener("click", () => location.reload());
  line.append(button);
  element.before(line);
}

// The reader's colours are set before anything is painted (overrides/partials/javascripts/palette.html); charts need to
// know when they change, and the browser's own bars, which take them when the page stands.
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

// After the first visit the site is there without a network as well; the visit itself comes first. Where browsers
// forbid that, nothing is lost.
const KEPT_AFTER_MS = 3000;
setTimeout(() => {
  navigator.serviceWorker?.register(new URL("../service-worker.js", import.meta.url)).catch(() => {});
}, KEPT_AFTER_MS);
