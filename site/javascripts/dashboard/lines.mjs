// The dashboard's numbers: the charts' lines and the tables' rows for a run.

import { plain } from "../charts.mjs";
import { showClock, showCount, showNumber } from "../format.mjs";

/** Number of colours for volunteers; the ninth volunteer gets the first colour again. */
const SERIES = 8;
const TABLE_ROWS = 500;
/** The page asks for the losses of so many volunteers (live.mjs). */
const MOST_LINES = 24;

/** The number of a volunteer's colour, from 1. It never changes, because `seen` keeps the order in which names came. */
export function seriesOf(seen, name) {
  if (!seen.includes(name)) seen.push(name);
  return (seen.indexOf(name) % SERIES) + 1;
}

/** The names of all volunteers: those on the leaderboard, and those that have sent losses. */
export function namesOf({ volunteers, peers }) {
  return [...new Set([...volunteers.map((volunteer) => volunteer.name), ...Object.keys(peers)])];
}

/**
 * Plotly's lines of the losses: a thin line for each volunteer, a thick one for the whole run.
 *
 * @param {object} feed see feed.mjs
 * @param {string[]} seen see seriesOf
 * @param {(name: string) => string} colour looks up a colour of the palette
 */
export function lossLines(feed, seen, colour) {
  const volunteers = Object.entries(feed.peers).map(([name, points]) => ({
    x: points.map((point) => point[0]),
    y: points.map((point) => point[1]),
    name: plain(name),
    mode: points.length > 1 ? "lines" : "markers",
    line: { color: colour(`series-${seriesOf(seen, name)}`), width: 1.2 },
    opacity: 0.75,
  }));
  return [...volunteers, { ...lineOf(feed, "loss"), name: "all", line: { color: colour("ink"), width: 2.6 } }];
}

export function volunteerLines(feed, colour) {
  const steps = { color: colour("series-1"), shape: "hv", width: 2 };
  return [{ ...lineOf(feed, "active_peers"), name: "volunteers", line: steps, fill: "tozeroy", fillcolor: colour("shade") }];
}

export function speedLines(feed, colour) {
  return [{ ...lineOf(feed, "samples_per_second"), name: "samples per second", line: { color: colour("series-2"), width: 2 } }];
}

function lineOf({ epochs }, key) {
  return { x: epochs.map((row) => row.epoch), y: epochs.map((row) => row[key]), mode: "lines" };
}

/** {head, body}, the newest epoch first. */
export function lossTable(feed) {
  const names = Object.keys(feed.peers);
  const losses = names.map((name) => new Map(feed.peers[name]));
  const cells = ({ epoch, loss }) => [loss, ...losses.map((known) => known.get(epoch))].map((value) => showNumber(value, 4));
  return { head: ["Epoch", "All", ...names], body: newestFirst(feed).map((row) => [row.epoch, ...cells(row)]) };
}

/** {head, body}, the newest epoch first. */
export function volunteerTable(feed) {
  return {
    head: ["Epoch", "Time", "Volunteers", "Samples", "Samples per second"],
    body: newestFirst(feed).map((row) => [
      row.epoch, showClock(row.time), row.active_peers, showCount(row.samples), showNumber(row.samples_per_second),
    ]),
  };
}

function newestFirst({ epochs }) {
  return epochs.slice(-TABLE_ROWS).reverse();
}

function whoOf(feed) {
  const [lines, all] = [Object.keys(feed.peers).length, Math.max(feed.total, namesOf(feed).length)];
  return all > MOST_LINES ? `the ${lines} volunteers with most samples, of ${all}` : `${all} volunteers`;
}

/** The chart of losses in words; empty before the first loss. */
export function lossSummary(feed) {
  const known = feed.epochs.filter((row) => row.loss !== null);
  if (!known.length) return "";
  const [first, last] = [known[0], known.at(-1)];
  return (
    `Loss per epoch: ${showNumber(first.loss)} at epoch ${first.epoch}, ${showNumber(last.loss)} at epoch ${last.epoch}, ` +
    `with a line for each of ${whoOf(feed)}.`
  );
}
