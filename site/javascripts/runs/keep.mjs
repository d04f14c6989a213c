// The copy of a run that is over, in the service worker: the page stays complete when all servers are off. A run that
// goes on is not kept: its copy would soon say what is no longer so.

import { isOver } from "./feed.mjs";

const MOST_PICTURES = 200;

/** Documents and newest pictures for the copy of a run; none of a run that goes on. */
export function copyOf(feed) {
  if (!isOver(feed)) return { documents: {}, files: [] };
  const { run, state, epochs, held_out, peers, volunteers, total, hours, contributors, least_seconds, snapshots, events } = feed;
  return {
    documents: {
      "live/run.json": run,
      "live/state.json": state,
      "live/history.json": { epochs, held_out },
      "live/losses.json": { peers },
      "live/leaderboard.json": { volunteers, total, hours, contributors, least_seconds },
      "live/pictures.json": { snapshots },
      "live/events.json": { events },
    },
    files: filesOf(snapshots).slice(-MOST_PICTURES),
  };
}

/** Addresses of the pictures; texts have none. */
function filesOf(snapshots) {
  return snapshots.flatMap(({ pictures }) => pictures.filter(({ file }) => file).map(({ file }) => file));
}

/** Gives the copy to the service worker, once for each state; browsers without one keep nothing. */
export function keepRun(kept, feed) {
  const what = isOver(feed) ? `${feed.run.run_id} ${feed.state.status} ${feed.state.epoch} ${feed.state.cause}` : "goes on";
  if (kept.what === what || feed.kept) return;
  kept.what = what;
  const run = structuredClone(copyOf(feed));
  globalThis.navigator?.serviceWorker?.ready.then(({ active }) => active.postMessage({ run }));
}
