// The address of a run, as a reader pastes it or as `?run=https://run.example` names it.

import { siteURL } from "../address.mjs";

/** Pages and files of a monitor's site that readers paste in place of its address. */
const OF_A_MONITOR = /(?:recipe\.toml|live\/[\w.]*|(?:dashboard|join|index\.html)\/?)$/;
/** An address goes into a command for a shell, so no other characters are accepted. */
const HOST = /^[a-z0-9._-]+$/;
const PATH = /^[\w.~/-]{1,200}$/;

/**
 * @typedef {object} Run a run that a page can show
 * @property {string} key its value of `?run=`; empty for the run of this site itself
 * @property {string} base address below which its documents are found; ends with a slash
 * @property {string} title shown until its documents name the run
 * @property {string} [record] base of its record, for the time when its monitor is gone
 * @property {string} [fault] why it cannot be asked
 */

/** The run that this site's own server has: a live one, or the recorded one. */
export const OWN = { key: "", base: siteURL(""), title: "The run of this site" };

/**
 * The run of a monitor.
 *
 * @param {string} text the monitor's address; without a scheme, https is meant
 * @param {string} page address of the page that is to ask it
 * @returns {Run}
 */
export function runAt(text, page) {
  const url = addressIn(text);
  if (!url) {
    const fault = `“${text.slice(0, 60)}” is not a monitor's address; one looks like https://run.example or http://203.0.113.7:8000.`;
    return { key: text, base: "", title: "Unknown run", fault };
  }
  const base = `${url.origin}${url.pathname.replace(/\/*$/, "/")}`;
  const run = { key: base.slice(0, -1), base, title: url.host };
  if (new URL(page).protocol !== "https:" || url.protocol === "https:" || isLoopback(url.hostname)) return run;
  return { ...run, fault: `This page came by https, and a browser lets such a page ask no monitor at http: open ${base} itself, or ask its maintainer for https.` };
}

function addressIn(text) {
  const whole = /^\w+:\/\//.test(text.trim()) ? text.trim() : `https://${text.trim()}`;
  if (!URL.canParse(whole)) return null;
  const url = new URL(whole);
  url.pathname = url.pathname.replace(OF_A_MONITOR, "");
  const plain = !url.username && !url.password && ["http:", "https:"].includes(url.protocol);
  return plain && HOST.test(url.hostname) && PATH.test(url.pathname) ? url : null;
}

/** Whether a host is the reader's own computer. */
export function isLoopback(host) {
  return host === "localhost" || /^127(\.\d+){3}$/.test(host);
}

/** A page's address with another run. */
export function withRun(href, { key }) {
  const url = new URL(href);
  if (key) url.searchParams.set("run", key);
  else url.searchParams.delete("run");
  return url.href;
}

/** The value of `?run=` in a page's address; empty without one. */
export function keyIn(href) {
  return new URL(href).searchParams.get("run") ?? "";
}

/** Address of a picture that a run's documents name; an empty picture if it is not among the run's own pictures. */
export function pictureURL({ base }, file) {
  const path = file.replace(/^\/+/, "");
  const url = URL.canParse(path, base) ? new URL(path, base).href : "";
  return url.startsWith(`${base}live/pictures/`) ? url : "data:,";
}
