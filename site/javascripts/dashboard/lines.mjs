// The dashboard's numbers: the charts' lines and the tables' rows for a run.

import { showClock, showCount, showNumber } from "../parts/format.mjs";

/** Number of colours for volunteers; the ninth volunteer gets the first colour again. */
const SERIES = 8;
const TABLE_ROWS = 500;
/** Number of volunteers whose losses the page asks for (runs/live.mjs). */
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
 * The lines of the losses (see chart.mjs): a thin one for each volunteer, rings for the checkpoints' losses on held-out
 * samples, and a strong line for the whole run.
 *
 * @param {object} feed see runs/feed.mjs
 * @param {string[]} seen see seriesOf
 */
export function lossLines(feed, seen) {
  const volunteers = Object.entries(feed.peers).map(([name, points]) => ({ name, points, colour: `series-${seriesOf(seen, name)}` }));
  const measured = feed.held_out.length ? [{ name: "held out", points: heldOutPoints(feed), colour: "ink", dots: true }] : [];
  return [...volunteers, ...measured, { name: "all", points: pointsOf(feed, "loss"), colour: "ink", strong: true }];
}

export function volunteerLines(feed) {
  return [{ name: "volunteers", points: pointsOf(feed, "active_peers"), colour: "series-1", steps: true }];
}

export function speedLines(feed) {
  return [{ name: "samples per second", points: pointsOf(feed, "samples_per_second"), colour: "series-2", strong: true }];
}

const isScored = ({ clip_score }) => Number.isFinite(clip_score);

function heldOutPoints({ held_out }) {
  return held_out.map(({ epoch, loss }) => [epoch, loss]);
}

function pointsOf({ epochs }, key) {
  return epochs.map((row) => [row.epoch, row[key]]);
}

/** {head, body}, the newest epoch first. */
export function lossTable(feed) {
  const names = Object.keys(feed.peers);
  const losses = names.map((name) => new Map(feed.peers[name]));
  const head = ["Epoch", "All", ...names];
  if (feed.held_out.length) {
    losses.unshift(new Map(heldOutPoints(feed)));
    head.splice(2, 0, "Held out");
  }
  const scores = feed.held_out.filter(isScored).map(({ epoch, clip_score }) => [epoch, clip_score]);
  if (scores.length) {
    losses.splice(1, 0, new Map(scores));
    head.splice(3, 0, "CLIP score");
  }
  const cells = ({ epoch, loss }) => [loss, ...losses.map((known) => known.get(epoch))].map((value) => showNumber(value, 4));
  return { head, body: newestFirst(feed).map((row) => [row.epoch, ...cells(row)]) };
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

/**
 * The newest loss on held-out samples in words; of a run of pictures also the newest CLIP score and the codec's error.
 * Empty if there is no loss.
 */
export function heldOutText({ run, held_out }) {
  if (!held_out.length) return "";
  const { epoch, loss, samples, tokens } = held_out.at(-1);
  const perplexity = run?.kind === "text" ? `, perplexity ${showNumber(Math.exp(loss))}` : "";
  const measured = `${showCount(samples)} held-out samples (${showCount(tokens)} tokens)`;
  const error = run?.reconstruction_error ?? null;
  const scored = held_out.findLast(isScored);
  const clip = scored ? ` CLIP score of pictures of held-out captions: ${showNumber(scored.clip_score, 3)} at epoch ${showCount(scored.epoch)} (mean cosine of picture and caption, larger is better).` : "";
  const codec = error === null ? "" : ` The codec gives the data's own pictures back with a mean squared error of ${showNumber(error, 2)}, of colours from 0 to 1.`;
  return (
    "Each ring is a checkpoint's loss on samples of the data that nobody trains on. " +
    `The newest: ${showNumber(loss, 4)} at epoch ${showCount(epoch)}${perplexity}, over ${measured}.${clip}${codec}`
  );
}
