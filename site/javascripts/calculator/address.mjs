// The page's address. It contains everything that the reader has set: the setup, and each pinned setup as a query.

/** With this in its address the page has neither header nor footer, so that other pages can show it in a frame. */
const EMBED = "embed";

export const isEmbedded = ({ search }) => new URLSearchParams(search).get(EMBED) === "1";

/** HTML that shows the page at `href` in a frame. */
export function frameOf(href) {
  const url = new URL(href);
  url.searchParams.set(EMBED, "1");
  return `<iframe src="${url.href.replaceAll("&", "&amp;")}" width="100%" height="900" loading="lazy" title="Memory calculator"></iframe>`;
}

/** The address of the page at `href` for a setup and the pinned setups. */
export function addressOf(href, query, pinned) {
  const url = new URL(href);
  const whole = new URLSearchParams(query);
  for (const pin of pinned) whole.append("pin", pin);
  if (isEmbedded(url)) whole.set(EMBED, "1");
  url.search = whole.toString();
  url.hash = "";
  return url.href;
}

/** The setup and the pinned setups in an address. */
export function partsOf(search) {
  const query = new URLSearchParams(search);
  return { query, pinned: query.getAll("pin") };
}

/** The join page's address with the choices that are a volunteer's own; the run's recipe sets all others. */
export function joinAddress(href, { config, model, micro_batch_size, gpu }) {
  const url = new URL(href);
  const chosen = new URLSearchParams({ micro_batch_size });
  if (!config) chosen.set("model", model);
  if (gpu) chosen.set("gpu", gpu);
  url.search = chosen.toString();
  return url.href;
}

/** Puts an address into the browser's bar: "push" adds a history entry, "replace" changes the current one. */
export function goTo(url, how) {
  if (url === location.href) return;
  if (how === "push") history.pushState(history.state, "", url);
  else history.replaceState(history.state, "", url);
}
