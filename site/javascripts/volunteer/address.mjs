// The address of a volunteer's page.

import { siteURL } from "../address.mjs";

/** Address of a volunteer's page, for the run that this page shows. */
export function pageOf(id, run) {
  const url = new URL(siteURL("volunteer/"));
  if (run?.key) url.searchParams.set("run", run.key);
  url.searchParams.set("id", id);
  return url.href;
}

/** The id in such an address; empty if it has none. */
export function idIn(href) {
  const id = new URL(href).searchParams.get("id") ?? "";
  return /^[0-9a-f]{16}$/.test(id) ? id : "";
}
