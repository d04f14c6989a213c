// Keeps a copy of what a reader has opened, for times without a network. site/builder/steps/offline.py writes the
// constants VERSION, FILES and LARGE above this text.
//
// A visit to a page keeps that page. Once the browser's Python has run, which takes far more bytes than all pages, the
// whole site is kept. Pages and scripts come from the network if there is one, so that nobody sees an old site. Files
// whose address changes with their content (the browser's Python, the charts' library) come from the copy, once a reader
// has used them. A run is kept only if it is over, when the dashboard sends it (javascripts/runs/keep.mjs); the copy of
// a run that goes on would be out of date.

const SITE = `site-${VERSION}`;
const NAMED_BY_CONTENT = "named-by-content";
const RUN = "run";
const LOST = "404.html";
const PYTHON = "runtime/";
const root = new URL("./", self.location);

self.addEventListener("install", (event) => {
  event.waitUntil(renewCopy().then(() => self.skipWaiting()));
});

self.addEventListener("activate", (event) => event.waitUntil(dropOld().then(() => self.clients.claim())));

self.addEventListener("message", (event) => {
  if (event.data?.keep) event.waitUntil(keepUsed(event.data.keep));
  if (event.data?.run) event.waitUntil(keepRun(event.data.run));
});

self.addEventListener("fetch", (event) => {
  const url = new URL(event.request.url);
  if (event.request.method !== "GET" || !url.href.startsWith(root.href)) return;
  const path = pathOf(url.href);
  if (path.startsWith("live/")) {
    if (path !== "live/events") event.respondWith(fromRun(event.request));
    return;
  }
  if (LARGE.includes(path)) event.respondWith(fromHere(event.request));
  else if (FILES.includes(path) || event.request.mode === "navigate") event.respondWith(fromNetwork(event));
});

/** Address below the site's root, without a query. */
function pathOf(href) {
  return href.slice(root.href.length).split(/[?#]/)[0];
}

/** Fetches anew what earlier versions of the site have kept. */
async function renewCopy() {
  const kept = new Set([LOST]);
  for (const name of await caches.keys()) {
    if (!name.startsWith("site-")) continue;
    for (const { url } of await (await caches.open(name)).keys()) kept.add(pathOf(url));
  }
  await addFiles(FILES.filter((path) => kept.has(path)), "no-cache");
}

async function addFiles(paths, mode) {
  const cache = await caches.open(SITE);
  await Promise.allSettled(paths.map((path) => cache.add(new Request(new URL(path, root), { cache: mode }))));
}

async function fromHere(request) {
  return (await caches.match(request.url, { cacheName: NAMED_BY_CONTENT })) ?? fetch(request);
}

async function fromNetwork(event) {
  const { request } = event;
  try {
    const answer = await fetch(request);
    if (answer.status === 200 && !answer.redirected && FILES.includes(pathOf(request.url))) {
      const copy = answer.clone();
      event.waitUntil(caches.open(SITE).then((cache) => cache.put(new URL(pathOf(request.url), root), copy)));
    }
    return answer;
  } catch (error) {
    const cache = await caches.open(SITE);
    const kept = await cache.match(request.url, { ignoreSearch: true });
    if (kept) return kept;
    const lost = request.mode === "navigate" && (await cache.match(new URL(LOST, root)));
    if (lost) return lost;
    throw error;
  }
}

/** The network's answer, or the copy's, marked as such; pictures, which do not change, look the same. */
async function fromRun(request) {
  try {
    return await fetch(request);
  } catch (error) {
    const kept = await (await caches.open(RUN)).match(request.url, { ignoreSearch: true });
    if (!kept) throw error;
    const headers = new Headers(kept.headers);
    headers.set("x-kept", "true");
    return new Response(await kept.blob(), { headers });
  }
}

/** Replaces the copy of a run. Its documents come from the page, since the server may be gone already. */
async function keepRun({ documents, files }) {
  await caches.delete(RUN);
  const cache = await caches.open(RUN);
  for (const [path, document] of Object.entries(documents)) {
    const headers = { "content-type": "application/json" };
    await cache.put(new URL(path, root), new Response(JSON.stringify(document), { headers }));
  }
  // The page has just shown most of them, so the browser's HTTP cache has them.
  await Promise.allSettled(files.map((url) => cache.add(new Request(url, { cache: "force-cache" }))));
}

/** Adds files that a page has used. The browser's HTTP cache usually has them, so this downloads nothing. */
async function keepUsed(hrefs) {
  const paths = hrefs.map(pathOf);
  await addFiles(FILES.filter((path) => paths.includes(path)), "force-cache");
  if (paths.some((path) => path.startsWith(PYTHON))) await keepSite();
  const cache = await caches.open(NAMED_BY_CONTENT);
  for (const path of paths.filter((one) => LARGE.includes(one))) {
    const url = new URL(path, root);
    if (!(await cache.match(url))) await cache.add(url);
  }
}

/** Adds all pages and scripts that are not kept yet. */
async function keepSite() {
  const kept = (await (await caches.open(SITE)).keys()).map(({ url }) => pathOf(url));
  await addFiles(FILES.filter((path) => !kept.includes(path)), "default");
}

async function dropOld() {
  for (const name of await caches.keys()) if (name.startsWith("site-") && name !== SITE) await caches.delete(name);
  const cache = await caches.open(NAMED_BY_CONTENT);
  for (const request of await cache.keys()) {
    if (!LARGE.includes(pathOf(request.url))) await cache.delete(request);
  }
}
