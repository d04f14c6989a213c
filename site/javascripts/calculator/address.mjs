// The page's address, which holds everything that the reader has set: the setup, and the pinned setups as queries.

/** The address of a setup and of the pinned ones, at the page that `href` names. */
export function addressOf(href, query, pinned) {
  const url = new URL(href);
  const whole = new URLSearchParams(query);
  for (const pin of pinned) whole.append("pin", pin);
  url.search = whole.toString();
  url.hash = "";
  return url.href;
}

/** What an address holds. */
export function partsOf(search) {
  const query = new URLSearchParams(search);
  return { query, pinned: query.getAll("pin") };
}

/** The join page with what a volunteer may choose; the rest of a setup is the run's own. */
export function joinAddress(href, { config, model, micro_batch_size, gpu }) {
  const url = new URL(href);
  const chosen = new URLSearchParams({ micro_batch_size });
  if (!config) chosen.set("model", model);
  if (gpu) chosen.set("gpu", gpu);
  url.search = chosen.toString();
  return url.href;
}

/** Puts an address into the browser's bar: "push" makes a step of the history, "replace" changes the present one. */
export function goTo(url, how) {
  if (url === location.href) return;
  if (how === "push") history.pushState(history.state, "", url);
  else history.replaceState(history.state, "", url);
}
