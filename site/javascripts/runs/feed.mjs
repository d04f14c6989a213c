// The page's knowledge of a run, and the run's status in words. live.mjs keeps it up to date.

import { showCount, showDate, showDuration } from "../parts/format.mjs";

/**
 * @typedef {object} Feed the page's knowledge of a run; run, state and the lists are copied from the monitor's
 *   documents
 * @property {"loading" | "none" | "refused" | "unreachable" | "known"} phase none: the server has no run; refused: it
 *   cannot be asked; unreachable: it does not answer, so that nothing is known
 * @property {Run | null} at the run that is followed, see address.mjs; null while it is looked for
 * @property {object | null} run
 * @property {object | null} state
 * @property {object[]} epochs the oldest first
 * @property {object[]} held_out losses of checkpoints on held-out samples, the oldest first
 * @property {Record<string, number[][]>} peers volunteer -> [epoch, loss] of each of its epochs
 * @property {object[]} volunteers the leaderboard, or its first part
 * @property {number} total how many volunteers it has in all
 * @property {number | null} hours the hours that it is about; null: the whole run
 * @property {number} [contributors] how many of them have computed for `least_seconds`
 * @property {object[]} snapshots
 * @property {object[]} events
 * @property {boolean} changed whether anything but the times has changed since the page was told last
 * @property {number} age of the shown state, in seconds
 * @property {number} now time by the server's clock, in seconds
 * @property {boolean} lost whether an answer is overdue
 * @property {boolean} offline whether the browser has no network
 * @property {boolean} kept whether all comes from the copy that the service worker keeps
 */

const LISTS = ["peers", "volunteers", "total", "hours", "contributors", "least_seconds", "snapshots", "events"];

/** @returns {Feed} an empty one */
export function emptyFeed(phase, at = null) {
  return {
    phase, at, run: null, state: null, epochs: [], held_out: [], peers: {}, volunteers: [], total: 0, hours: null,
    snapshots: [], events: [],
    changed: true, age: 0, now: Date.now() / 1000, lost: false, offline: false, kept: false,
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

/** Adds new losses to the known ones, as `merged` does for each volunteer, whose name may be "constructor". */
export function mergedLosses(peers, news) {
  const all = new Map(Object.entries(peers));
  for (const [name, points] of Object.entries(news)) {
    all.set(name, [...new Map([...(all.get(name) ?? []), ...points]).entries()].sort(([a], [b]) => a - b));
  }
  return Object.fromEntries(all);
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
 * @param {object} clock
 * @param {number} clock.now this computer's clock, in seconds
 * @param {number} clock.serverAhead by how many seconds the server's clock is ahead
 * @param {number} clock.answeredAt time of the last answer, in seconds; 0: none yet
 * @param {boolean} clock.offline whether the browser has no network; a server on this computer may answer all the same
 * @param {boolean} clock.failed whether the last question got no answer
 */
export function tellTime(feed, { now, serverAhead, answeredAt, offline = false, failed = false }) {
  const isGoingOn = feed.phase === "known" && !isOver(feed);
  feed.now = now + serverAhead;
  feed.age = answeredAt ? Math.max(now - answeredAt, isOver(feed) ? 0 : feed.now - feed.state.time) : 0;
  feed.offline = offline;
  feed.lost = isGoingOn && (feed.age > overdueAfter(feed) || (offline && failed));
}

/** Whether nothing more is expected of the run: it is finished, or its monitor has stopped, or has failed and is gone. */
export function isOver({ state }) {
  return state?.status === "finished" || state?.status === "stopped" || (state?.status === "failed" && state.stream === false);
}

/** Whether the run comes from files, and not from a monitor that still answers. */
export function isRecording({ state }) {
  return state.status === "finished" && !state.stream;
}

/** What a recorded run was, in words. */
function describeRecording({ run, total, volunteers }) {
  if (!run.one_machine) return "";
  const where = run.cores ? `one computer with ${run.cores} cores` : "one computer";
  return ` Its ${showCount(total || volunteers.length)} volunteers were programs on ${where}.`;
}

/** The run's status, {kind, label, text, remedy}; the remedy is empty if there is nothing to do. */
export function describe(feed) {
  if (feed.phase === "loading") return { kind: "loading", label: "Looking", text: "Looking for a run …", remedy: "" };
  if (feed.phase === "refused") return { kind: "none", label: "No run", text: feed.at.fault, remedy: "" };
  if (feed.phase === "none") {
    const text = feed.at?.key
      ? `What answers at ${feed.at.key} is not a monitor with a run.`
      : "No run is live here now, and no finished run is recorded.";
    return { kind: "none", label: "No run", text, remedy: "" };
  }
  if (feed.phase === "unreachable") return describeUnreachable(feed);
  if (feed.lost) return describeLost(feed);
  const { status } = feed.state;
  const { kind, text } = describeOwn(feed);
  if (isRecording(feed)) {
    return { kind, label: "Recorded", text: `A recording. ${text}${describeRecording(feed)}${kept(feed)}`, remedy: START_ONE };
  }
  const told = status === "running" ? `${text} ${feed.state.cause ?? ""}`.trim() : feed.state.cause || text;
  return { kind, label: LABELS[kind] ?? status, text: told + kept(feed), remedy: feed.state.remedy ?? "" };
}

/** Says that the page shows a copy which the browser has kept; empty if it does not. */
function kept(feed) {
  return feed.kept ? ` ${feed.offline ? "You are offline" : "The server does not answer"}: this is the copy that your browser has kept.` : "";
}

const START_ONE = "To see a run live, start one on your machine: .venv/bin/nox -s demo";

const LABELS = {
  waiting: "Waiting", running: "Live", slow: "Slow", split: "Split", stopped: "Stopped", failed: "Fault", finished: "Finished",
};

/** Nothing is known of a run, because nobody answers. */
function describeUnreachable({ offline, at }) {
  if (offline) {
    const text = "You are offline, and your browser has kept no copy of the run.";
    return { kind: "offline", label: "Offline", text, remedy: "This page looks for the run again as soon as there is a network." };
  }
  if (at?.key) {
    const text = `The monitor at ${at.key} does not answer, or lets no other site ask it.`;
    return { kind: "lost", label: "No answer", text, remedy: "This page asks again every few seconds. An older monitor shows its run only on its own site." };
  }
  const text = "The server of this page does not answer, so nothing is known here about a run.";
  return { kind: "lost", label: "No answer", text, remedy: "This page asks again every few seconds. The run's maintainer may have to start the monitor." };
}

/** A run that was known, and of which nothing has been heard for a while. */
function describeLost({ offline, age }) {
  if (offline) {
    const text = `You are offline; this page shows the run as it was ${showDuration(age)} ago.`;
    return { kind: "offline", label: "Offline", text, remedy: "It goes on by itself as soon as there is a network." };
  }
  const text = `The monitor has not answered for ${showDuration(age)}, and has not said that it stops: it has failed, or the way to it is cut. This page shows what it said last.`;
  return { kind: "lost", label: "No news", text, remedy: "Volunteers do not need the monitor to train. Its maintainer can start it again with the same --run-dir." };
}

/** {kind, text} by the page's own words, for states whose cause the server does not say. */
function describeOwn(feed) {
  const { status, epoch, last_epoch_at } = feed.state;
  const ended = last_epoch_at ? ` on ${showDate(last_epoch_at)}` : "";
  const after = epoch === null ? "before its first epoch" : `after epoch ${showCount(epoch)}`;
  switch (status) {
    case "finished":
      return { kind: "finished", text: `This run finished${ended}, ${after}.` };
    case "stopped":
      return { kind: "stopped", text: `This run stopped${ended}, ${after}. It can go on from its last checkpoint.` };
    case "waiting":
      return { kind: "waiting", text: "No volunteer is active now. The run goes on as soon as somebody joins." };
    case "running":
      return describeRunning(feed);
    default:
      return { kind: status, text: "" };
  }
}

function describeRunning({ run, state }) {
  const goal = run.total_epochs ? ` of ${showCount(run.total_epochs)}` : "";
  const where = state.epoch === null ? "the first epoch has not finished yet" : `epoch ${showCount(state.epoch)}${goal}`;
  return { kind: "running", text: `Training now: ${where}.` };
}

/** Seconds without an answer after which the monitor counts as lost: three of its updates, at least eight seconds. */
function overdueAfter(feed) {
  return Math.max(8, 3 * (feed.state.updated_every_seconds ?? 2));
}

/** Seconds until the next question to the monitor: its own interval, or longer if no news is expected soon. */
export function pauseAfter(feed) {
  if (isOver(feed) && feed.state.active_peers === 0) return 30;
  return { none: 15, unreachable: 5 }[feed.phase] ?? (feed.state?.updated_every_seconds ?? 2);
}
