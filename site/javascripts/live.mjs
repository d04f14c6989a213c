// Follows a run through /live/*.json on the site's own origin. During a run the monitor serves these addresses; on a
// static site they are files with the recorded run, or an empty run.json if no run was recorded.

import { siteURL } from "./address.mjs";
import { emptyFeed, isBefore, merged, pauseAfter, takeLists, tellTime } from "./feed.mjs";

const REST_EVERY_SECONDS = 10;
const ANSWER_WITHIN_SECONDS = 10;
const TOLD_EVERY_MS = 1000;

const now = () => Date.now() / 1000;

/**
 * @typedef {object} Following
 * @property {Feed} feed see feed.mjs
 * @property {(feed: Feed) => void} onChange
 * @property {string[]} documents those to ask for besides the run, its state and its history
 * @property {boolean} stopped
 * @property {number} turn number of the current loop: a loop that finds another number here ends
 * @property {number} timer of the next question
 * @property {number} answeredAt time of the last answer in seconds; 0 before the first
 * @property {number} serverAhead by how many seconds the server's clock is ahead of this computer's
 * @property {number} restAt time at which all documents are asked for again, even without a new epoch
 */

/**
 * Calls `onChange(feed)` at each change of the run and every second, so that the page can show times.
 *
 * @param {object} options
 * @param {string[]} options.documents which of losses, leaderboard, pictures and events to follow
 * @returns {() => void} stops following
 */
export function followRun(onChange, { documents = [] } = {}) {
  const feed = emptyFeed("loading");
  const following = { feed, onChange, documents, stopped: false, turn: 0, timer: 0, answeredAt: 0, serverAhead: 0, restAt: 0 };
  const onVisible = () => goOn(following);
  document.addEventListener("visibilitychange", onVisible);
  const ticker = setInterval(() => !document.hidden && tell(following), TOLD_EVERY_MS);
  loop(following, following.turn);
  return () => {
    following.stopped = true;
    clearTimeout(following.timer);
    clearInterval(ticker);
    document.removeEventListener("visibilitychange", onVisible);
  };
}

/** Asks at once when the page becomes visible again: the loop may have paused for long. */
function goOn(following) {
  if (document.hidden) return;
  clearTimeout(following.timer);
  loop(following, ++following.turn);
}

/** Asks at intervals, except while the page is hidden. */
async function loop(following, mine) {
  if (!document.hidden) {
    const { phase } = following.feed;
    // A failed request needs no message of its own: the state's age grows on the page, and the next turn asks again.
    await update(following).catch(() => {});
    if (following.stopped || mine !== following.turn) return;
    if (following.feed.phase !== phase) following.feed.changed = true;
    tell(following);
  }
  following.timer = setTimeout(loop, pauseAfter(following.feed) * 1000, following, mine);
}

/** Passes the feed with current times to the page. */
function tell(following) {
  const { feed } = following;
  tellTime(feed, { ...following, now: now() });
  following.onChange(feed);
  feed.changed = false;
}

/** Asks for the run until one is known, and for its state; if the state is new, also for the other documents. */
async function update(following) {
  const { feed } = following;
  const first = feed.phase !== "known";
  if (first && !(await findRun(following))) return;
  const state = await get(following, "state.json");
  const before = feed.state;
  if (isBefore(state, before)) {
    // All that is known belongs to another run, or to epochs that will be trained again, so it is dropped.
    Object.assign(feed, emptyFeed("loading"));
    return update(following);
  }
  feed.state = state;
  const isNew = first || state.epoch !== before.epoch || state.status !== before.status;
  if (isNew || now() >= following.restAt) await updateRest(following);
  feed.phase = "known";
  feed.changed = true;
  following.answeredAt = now();
}

/** Asks for the run; resolves to whether there is one. */
async function findRun(following) {
  const run = await get(following, "run.json").catch(() => null);
  if (run?.run_id) following.feed.run = run;
  else following.feed.phase = "none";
  return Boolean(run?.run_id);
}

async function updateRest(following) {
  const { feed, documents } = following;
  // The last two epochs are asked for again, because late reports of volunteers change them.
  const since = feed.epochs.length ? `?since=${feed.epochs.at(-1).epoch - 2}` : "";
  const names = [`history.json${since}`, ...documents.map((name) => `${name}.json`)];
  const [history, ...others] = await Promise.all(names.map((name) => get(following, name)));
  feed.epochs = merged(feed.epochs, history.epochs);
  takeLists(feed, others);
  following.restAt = now() + REST_EVERY_SECONDS;
}

async function get(following, name) {
  const response = await fetch(siteURL(`live/${name}`), {
    cache: "no-cache",
    signal: AbortSignal.timeout(ANSWER_WITHIN_SECONDS * 1000),
  });
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  const dated = Date.parse(response.headers.get("date") ?? "");
  if (!Number.isNaN(dated)) following.serverAhead = dated / 1000 - now();
  return response.json();
}
