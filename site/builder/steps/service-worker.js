// Keeps a copy of the site for readers without a network. site/builder/steps/offline.py writes the constants VERSION,
// FILES and LARGE above this text.
//
// Pages and scripts come from the network if there is one, so that nobody sees an old site. Files whose address changes
// with their content (the browser's Python, the charts' library) come from the copy, once a reader has used them. Of a
// run, only one that is over is kept, when the dashboard sends it (javascripts/keep.mjs); the copy of one that goes on
// would be out of date.

const SITE = `site-${VERSION}`;
const NAMED_BY_CONTENT = "named-by-content";
const RUN = "run";
const root = new URL("./", self.location);

self.addEventListener("install", (event) => {
  const fresh = FILES.map((path) => new Request(new URL(path, root), { cache: "no-cache" }));
  event.waitUntil(caches.open(SITE).then((cache) => cache.addAll(fresh)).then(() => self.skipWaiting()));
});

self.addEventListener("activate", (event) => event.waitUntil(dropOld().then(() => self.clients.claim())));

self.addEventListener("message", (event) => {
  if (event.data?.keep) event.waitUntil(keepUsed(event.data.keep));
  if (event.data?.run) event.waitUntil(keepRun(event.data.run));
});

self.addEventListener("fetch", (event) => {
  const url = new URL(event.request.url);
  if (event.request.method !== "GET" || !url.href.startsWith(root.href)) return;
  const path = url.href.slice(root.href.length).split(/[?#]/)[0];
  if (path.startsWith("live/")) {
    if (path !== "live/events") event.respondWith(fromRun(event.request));
    return;
  }
  if (LARGE.includes(path)) event.respondWith(fromHere(event.request));
  else if (FILES.includes(path) || event.request.mode === "navigate") event.respondWith(fromNetwork(event.request));
});

async function fromHere(request) {
  return (await caches.match(request.url, { cacheName: NAMED_BY_CONTENT })) ?? fetch(request);
}

async function fromNetwork(request) {
  try {
    return await fetch(request);
  } catch (error) {
    const cache = await caches.open(SITE);
    const kept = await cache.match(request.url, { ignoreSearch: true });
    if (kept) return kept;
    const lost = request.mode === "navigate" && (await cache.match(new URL("404.html", root)));
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

/** Adds large files that a page has used. The browser's HTTP cache usually has them, so this downloads nothing. */
async function keepUsed(paths) {
  const cache = await caches.open(NAMED_BY_CONTENT);
  for (const path of paths.filter((one) => LARGE.includes(one))) {
    const url = new URL(path, root);
    if (!(await cache.match(url))) await cache.add(url);
  }
}

async function dropOld() {
  for (const name of await caches.keys()) if (name.startsWith("site-") && name !== SITE) await caches.delete(name);
  const cache = await caches.open(NAMED_BY_CONTENT);
  for (const request of await cache.keys()) {
    if (!LARGE.includes(request.url.slice(root.href.length))) await cache.delete(request);
  }
}
