// Links between the pages that show a run: they lead to the run that this page shows.

import { siteURL } from "../address.mjs";
import { keyIn, withRun } from "./address.mjs";

const FOLLOW = ["", "dashboard/", "join/", "volunteer/"];

/** Puts the run of a page's address into the links that lead to pages of a run, unless they name one themselves. */
export function keepChoice(links, href) {
  const key = keyIn(href);
  const pages = FOLLOW.map(siteURL);
  for (const link of links) {
    if (pages.includes(link.href.split(/[?#]/)[0]) && !link.closest("[data-part=runs]")) link.href = withRun(link.href, { key });
  }
}
