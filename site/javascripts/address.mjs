// The site's own addresses.

/**
 * The site's root. The build bundles modules and thereby moves them between folders, so a path relative to a module's
 * own file would break; the folder "javascripts" stays.
 */
const ROOT = import.meta.url.slice(0, import.meta.url.lastIndexOf("/javascripts/") + 1);

/** Address of a file of the site, named from the site's root; also correct if the site is served below a sub-path. */
export function siteURL(path) {
  return new URL(path.replace(/^\//, ""), ROOT).href;
}
