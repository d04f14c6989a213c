// The page's knowledge of a run, and the run's status in words. live.mjs keeps it up to date.

import { showCount, showDate, showDuration } from "./format.mjs";

/**
 * @typedef {object} Feed the page's knowledge of a run; run, state and the lists are copied from the monitor's
 *   documents
 * @property {"loading" | "none" | "known"} phase
 * @property {object | null} run
 * @property {object | null} state
 * @property {object[]} epochs the oldest first
 * @property {Record<string, number[][]>} peers volunteer -> [epoch, loss] of each of its epochs
 * @property {object[]} volunteers the leaderboard
 * @property {object[]} snapshots
 * @property {object[]} events
 * @property {boolean} changed whether anything but the times has changed since the page was told last
 * @property {number} age of the shown state, in seconds
 * @property {number} now time by the server's clock, in seconds
 * @property {boolean} lost whether an answer is overdue
 */

const LISTS = ["peers", "volunteers", "snapshots", "events"];

/** @returns {Feed} an empty one */
export function emptyFeed(phase) {
  return {
    phase, run: null, state: null, epochs: [], peers: {}, volunteers: [], snapshots: [], events: [],
    changed: true, age: 0, now: Date.now() / 1000, lost: false,
  };
}

/** Whether a state is earlier than the known one: another run's, or the same run's after a return to a checkpoint. */
export function isBefore(state, known) {
  return Boolean(known) && (state.epoch ?? -1) < (known.epoch ?? -1);
}

/** Adds new epochs to the known ones; a new epoch replaces the known epoch of the same number. */
export function merged(epochs, news) {
  const known = new Map([...epochs, ...news].map((row) => [row.epoch, row]));
  return [...known.values()].sort((a, b) => a.epoch - b.epoch);
}

/** Copies the lists of several documents into the feed. */
export function takeLists(feed, documents) {
  for (const document of documents) {
    for (const list of LISTS) if (list in document) feed[list] = document[list];
  }
}

/**
 * Updates the times of a feed.
 *
 * The age is the shown state's, not the last answer's: a server may answer with an old state. For a run that is over
 * only the last answer's age counts, because its state does not change.
 *
 * @param {Feed} feed
 * @param {{now: number, serverAhead: number, answeredAt: number}} clock in seconds: this computer's clock, by how much
 *   the server's clock is ahead, and the time of the last answer (0: none yet)
 */
export function tellTime(feed, { now, serverAhead, answeredAt }) {
  const isGoingOn = feed.phase === "known" && !isOver(feed);
  feed.now = now + serverAhead;
  feed.age = answeredAt ? Math.max(now - answeredAt, isOver(feed) ? 0 : feed.now - feed.state.time) : 0;
  feed.lost = isGoingOn && feed.age > overdueAfter(feed);
}

/** Whether the run has ended. */
export function isOver(feed) {
  return feed.state?.status === "finished" || feed.state?.status === "stopped";
}

/** The run's status, {kind, label, text}. */
export function describe(feed) {
  if (feed.phase === "loading") return { kind: "loading", label: "Looking", text: "Looking for a run …" };
  if (feed.phase === "none") {
    return { kind: "none", label: "No run", text: "No run is live here now, and no finished run is recorded." };
  }
  if (feed.lost) {
    const text = `The monitor has not answered for ${showDuration(feed.age)}. Volunteers go on without it; this page shows what it said last.`;
    return { kind: "lost", label: "No news", text };
  }
  return describeResting(feed.state) ?? describeGoingOn(feed);
}

/** The status of a run that nobody trains now; undefined for other runs. */
function describeResting({ status, epoch, last_epoch_at }) {
  const ended = last_epoch_at ? ` on ${showDate(last_epoch_at)}` : "";
  const after = epoch === null ? "before its first epoch" : `after epoch ${showCount(epoch)}`;
  switch (status) {
    case "finished":
      return { kind: "finished", label: "Finished", text: `This run finished${ended}, ${after}.` };
    case "stopped":
      return { kind: "stopped", label: "Stopped", text: `This run stopped${ended}, ${after}. It can go on from its last checkpoint.` };
    case "waiting":
      return { kind: "waiting", label: "Waiting", text: "No volunteer is active now. The run goes on as soon as somebody joins." };
  }
}

function describeGoingOn(feed) {
  const { run, state } = feed;
  const quiet = state.last_epoch_at ? feed.now - state.last_epoch_at : 0;
  if (quiet > slowAfter(feed.epochs)) {
    const text = `No epoch was finished for ${showDuration(quiet)}, longer than usual: volunteers may be leaving or joining.`;
    return { kind: "slow", label: "Slow", text };
  }
  const goal = run.total_epochs ? ` of ${showCount(run.total_epochs)}` : "";
  const where = state.epoch === null ? "the first epoch has not finished yet" : `epoch ${showCount(state.epoch)}${goal}`;
  return { kind: "running", label: "Live", text: `Training now: ${where}.` };
}

/** Seconds without a finished epoch after which a run counts as slow: six times the recent mean, at least a minute. */
function slowAfter(epochs) {
  const times = epochs.slice(-20).map((row) => row.time);
  if (times.length < 3) return 180;
  return Math.max(60, (6 * (times.at(-1) - times[0])) / (times.length - 1));
}

/** Seconds without an answer after which the monitor counts as lost: three of its updates, at least eight seconds. */
function overdueAfter(feed) {
  return Math.max(8, 3 * (feed.state.updated_every_seconds ?? 2));
}

/** Seconds until the next question to the monitor: its own interval, or longer if no news is expected soon. */
export function pauseAfter(feed) {
  if (isOver(feed) && feed.state.active_peers === 0) return 30;
  return feed.phase === "none" ? 15 : (feed.state?.updated_every_seconds ?? 2);
}
