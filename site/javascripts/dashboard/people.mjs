// The volunteers of a run: the leaderboard and the events.

import { idIn, pageOf } from "../volunteer/address.mjs";
import { element, heading } from "../parts/elements.mjs";
import { isOver } from "../runs/feed.mjs";
import { showClock, showCount, showDuration, showNumber } from "../parts/format.mjs";
import { showRows } from "../parts/rows.mjs";
import { seriesOf } from "./lines.mjs";

const MOST_EVENTS = 100;

/** Fills the leaderboard; `seen` sets the volunteers' colours, see lines.mjs. */
export function showBoard(board, feed, seen) {
  const places = placesOf(feed);
  const rows = feed.volunteers.map((volunteer, n) => {
    const texts = [places[n], ...volunteerTexts(volunteer, feed)];
    // Before its row is made: the order of the board sets the colours, even if the rows come piece by piece.
    const series = seriesOf(seen, volunteer.name);
    const { name: key, active } = volunteer;
    return { key, texts, data: { active }, make: () => volunteerRow(volunteer, texts.length, series, feed.at) };
  });
  return showRows(board, rows);
}

/** Each volunteer's place, in the order of the list; "–" for those who have not computed for ten minutes. */
export function placesOf({ volunteers, least_seconds = 0 }) {
  let place = 0;
  return volunteers.map(({ seconds }) => (seconds >= least_seconds ? showCount(++place) : "–"));
}

/** How many volunteers have computed for ten minutes, as a sentence; empty for a record of an earlier version. */
export function contributorsText({ total, contributors, least_seconds }) {
  if (contributors === undefined) return "";
  const [have, places] = contributors === 1 ? ["has", "a place"] : ["have", "places"];
  const who = `Of ${showCount(total)} ${total === 1 ? "volunteer" : "volunteers"}, ${showCount(contributors)}`;
  return `${who} ${have} computed for ${showDuration(least_seconds)}, and so ${have} ${places}.`;
}

/** Brings the button for further volunteers up to date. */
export function showMoreButton(button, { volunteers, total }) {
  button.hidden = volunteers.length >= total;
  button.textContent = `More of the ${showCount(total)} volunteers`;
}

function volunteerRow(volunteer, cells, series, run) {
  const swatch = element("span", []);
  swatch.className = "swatch";
  swatch.style.setProperty("--swatch", `var(--series-${series})`);
  const who = heading("", "row");
  const href = pageOf(volunteer.page ?? "", run);
  const name = idIn(href) ? element("a", [volunteer.name]) : volunteer.name;
  if (name.href === "") name.href = href;
  who.append(swatch, name);
  return element("tr", [who, ...Array.from({ length: cells }, () => element("td", []))]);
}

/** A volunteer's cells: samples, share, time, and its speed or how long it took part. */
export function volunteerTexts(volunteer, feed) {
  const { samples, share, seconds } = volunteer;
  return [showCount(samples), showShare(share), showDuration(seconds), nowOf(volunteer, feed)];
}

/** A share in percent; in a run of hundreds all are below 1 %. */
export function showShare(share) {
  if (share === null) return "–";
  return `${share < 0.01 ? showNumber(100 * share, 1) : Math.round(100 * share)} %`;
}

function nowOf({ active, samples_per_second, last_seen }, feed) {
  if (active) return samples_per_second === null ? "active" : `${showNumber(samples_per_second)} samples/s`;
  return isOver(feed) ? untilOf(last_seen, feed.epochs) : `gone ${showDuration(feed.now - last_seen)} ago`;
}

/** How long a volunteer took part in a run that is over. */
function untilOf(lastSeen, epochs) {
  const seen = epochs.filter(({ time }) => time <= lastSeen);
  if (seen.length === epochs.length) return "to the end";
  return seen.length ? `until epoch ${showCount(seen.at(-1).epoch)}` : "before the first epoch";
}

/** Fills the list of events if there are new ones. Filling it again would scroll the reader back to its top. */
export function showEvents(list, feed) {
  const events = eventsToTell(feed.events);
  const state = JSON.stringify(events[0] ?? null) + events.length;
  if (list.dataset.state === state) return;
  list.dataset.state = state;
  list.replaceChildren(...(events.length ? events.map(eventLine) : [element("li", ["Nothing yet."])]));
}

/** The events that are listed, the newest first; of the checkpoints only the last, because there are so many. */
export function eventsToTell(events) {
  const saved = events.findLast((event) => event.kind === "checkpoint");
  const told = events.filter((event) => event.kind !== "checkpoint" || event === saved);
  return told.reverse().slice(0, MOST_EVENTS);
}

function eventLine({ time, name, kind, text }) {
  const clock = element("time", [showClock(time)]);
  clock.dateTime = new Date(time * 1000).toISOString();
  const line = element("li", [clock, " ", ...(name ? [element("strong", [name]), " "] : []), text]);
  line.dataset.kind = kind;
  return line;
}
