// Follows the chosen run (chosen.mjs) through its live/*.json. A monitor serves these addresses, for its own site and
// for others; on a static site they are files with the recorded run, or an empty run.json if no run was recorded.

import { emptyFeed, isBefore, isOver, merged, mergedLosses, pauseAfter, takeLists, tellTime } from "./feed.mjs";
import { keepRun } from "./keep.mjs";
import { pictureURL } from "./address.mjs";
import { chosenRun } from "./chosen.mjs";
import { ask } from "./documents.mjs";
import { closeStream, isFresh, makeStream, openStream } from "./stream.mjs";

const REST_EVERY_SECONDS = 10;
const TOLD_EVERY_MS = 1000;
/** More rows than these are replaced by fewer, which the server averages: a chart has not so many pixels. */
const MOST_ROWS = 3000;
/** Of a long run: means in place of the older epochs, and of each volunteer's losses; and how many volunteers. */
const WHOLE = { history: "points=1000", losses: "points=500&most=24" };
const PAGE = 100;

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
 * @property {string} told the epoch and status of the last state whose other documents have come
 * @property {number} restAt time at which all documents are asked for again, even without a new epoch
 * @property {number} most how many volunteers of the leaderboard to ask for
 * @property {number | null} hours until now that the leaderboard covers; null: the whole run
 * @property {boolean} failed whether the last question got no answer
 * @property {object | null} pushed a state that the stream has sent, until it is taken over
 * @property {Promise} working ends when the current update has ended; updates run one after the other, because an older
 *   answer that overtakes a newer one would look like a run that has gone back
 * @property {object} stream see stream.mjs
 * @property {{what: string}} kept what the service worker keeps; see keep.mjs
 */

/**
 * Calls `onChange(feed)` at each change of the run and every second, so that the page can show times.
 *
 * @param {object} options
 * @param {string[]} options.documents which of losses, leaderboard, pictures and events to follow
 * @returns {() => void} stops following
 */
export function followRun(onChange, { documents = [] } = {}) {
  const following = {
    feed: emptyFeed("loading"), onChange, documents, stopped: false, turn: 0, timer: 0, answeredAt: 0, serverAhead: 0,
    told: "", restAt: 0, most: PAGE, hours: null, failed: false, pushed: null, working: Promise.resolve(), stream: null, kept: { what: "" },
  };
  following.stream = makeStream((state) => {
    following.pushed = state;
    goOn(following);
  });
  following.feed.showMore = () => showMore(following);
  following.feed.showPeriod = (hours) => showPeriod(following, hours);
  const onWake = () => goOn(following);
  const stopListening = listen(onWake);
  const ticker = setInterval(() => !document.hidden && tell(following), TOLD_EVERY_MS);
  chosenRun().then((run) => begin(following, run));
  return () => {
    following.stopped = true;
    closeStream(following.stream);
    clearTimeout(following.timer);
    clearInterval(ticker);
    stopListening();
  };
}

/** Asks the chosen run from now on. */
function begin(following, run) {
  if (following.stopped) return;
  Object.assign(following.feed, emptyFeed(run.fault ? "refused" : "loading", run));
  if (run.key) tell(following); // the page itself has the run of this site
  goOn(following);
}

/** Calls `onWake` when the page is shown or hidden, and when the network goes or comes; returns what stops that. */
function listen(onWake) {
  document.addEventListener("visibilitychange", onWake);
  for (const name of ["online", "offline"]) globalThis.addEventListener?.(name, onWake);
  return () => {
    document.removeEventListener("visibilitychange", onWake);
    for (const name of ["online", "offline"]) globalThis.removeEventListener?.(name, onWake);
  };
}

/** The next volunteers of the leaderboard. */
function showMore(following) {
  following.most += PAGE;
  following.restAt = 0;
  goOn(following);
}

/** Asks for the leaderboard of another period. */
function showPeriod(following, hours) {
  Object.assign(following, { hours, most: PAGE, restAt: 0 });
  goOn(following);
}

/** Asks at once when there may be news; a hidden page holds no stream, because the server has only so many. */
function goOn(following) {
  if (!following.feed.at || following.feed.phase === "refused") return;
  if (document.hidden) return closeStream(following.stream);
  clearTimeout(following.timer);
  loop(following, ++following.turn);
}

/** Asks at intervals, except while the page is hidden. */
async function loop(following, mine) {
  if (!document.hidden) {
    const { phase } = following.feed;
    // A failed request needs no message of its own: the state's age grows on the page, and the next turn asks again.
    following.working = following.working.then(() => update(following)).then(
      () => (following.failed = false),
      (error) => {
        following.failed = true;
        // It answers for a run, but not with a run's documents.
        if (following.feed.phase === "loading" && error.status === 200) following.feed.phase = "none";
      },
    );
    await following.working;
    if (following.stopped || mine !== following.turn) return;
    if (following.feed.phase !== phase) following.feed.changed = true;
    tell(following);
  }
  following.timer = setTimeout(loop, pauseAfter(following.feed) * 1000, following, mine);
}

/** Passes the feed with current times to the page. */
function tell(following) {
  const { feed } = following;
  tellTime(feed, { ...following, now: now(), offline: globalThis.navigator?.onLine === false });
  following.onChange(feed);
  feed.changed = false;
}

/** Asks for the run until one is known, and for its state; if the state is new, also for the other documents. */
async function update(following) {
  const { feed } = following;
  const first = feed.phase !== "known";
  if (first && !(await findRun(following))) return;
  const state = await nextState(following);
  const before = feed.state;
  if (isBefore(state, before)) {
    // All that is known belongs to another run, or to epochs that will be trained again, so it is dropped.
    Object.assign(feed, emptyFeed("loading", feed.at));
    return update(following);
  }
  const what = `${state.status} ${state.epoch}`;
  const isDue = first || what !== following.told || now() >= following.restAt;
  // A state that says again what is known changes no more than the times.
  feed.changed ||= isDue || JSON.stringify({ ...state, time: 0 }) !== JSON.stringify({ ...before, time: 0 });
  feed.state = state;
  if (!first && isDue) tell(following); // the page need not wait for the rest
  if (isDue) await updateRest(following);
  // Only now: if the rest does not come, the next turn finds it due again.
  following.told = what;
  feed.changed ||= isDue;
  feed.phase = "known";
  following.answeredAt = now();
  if (isOver(feed) || !state.stream) closeStream(following.stream);
  else if (!following.stopped) openStream(following.stream, feed.at, now());
  if (following.documents.includes("losses") && !feed.at.key) keepRun(following.kept, feed);
}

/** The state that the stream has sent, or else the server's answer. */
async function nextState(following) {
  const { pushed, feed, stream } = following;
  following.pushed = null;
  return pushed ?? (feed.state && isFresh(stream, now()) ? feed.state : await get(following, "state.json"));
}

/** Asks for the run; resolves to whether there is one. */
async function findRun(following) {
  const { feed } = following;
  try {
    const run = await get(following, "run.json");
    if (run.run_id) feed.run = run;
    else feed.phase = "none";
    return Boolean(run.run_id);
  } catch (error) {
    // A server that answers, but not with a run, has none; one that does not answer may have one.
    feed.phase = error.status === 404 || error.status === 200 ? "none" : "unreachable";
    return false;
  }
}

async function updateRest(following) {
  const { feed, documents } = following;
  // The last two epochs are asked for again, because late reports of volunteers change them.
  const since = feed.epochs.length && feed.epochs.length < MOST_ROWS ? `since=${feed.epochs.at(-1).epoch - 2}` : "";
  const parts = {
    history: since || WHOLE.history,
    losses: since ? `most=24&${since}` : WHOLE.losses,
    leaderboard: `most=${following.most}${following.hours ? `&hours=${following.hours}` : ""}`,
  };
  const names = ["history", ...documents].map((name) => (parts[name] ? `${name}.json?${parts[name]}` : `${name}.json`));
  const [history, ...others] = await Promise.all(names.map((name) => get(following, name)));
  const losses = others.find((document) => "peers" in document);
  if (losses && since) losses.peers = await withNewLines(following, losses.peers);
  for (const { snapshots = [] } of others) for (const { pictures } of snapshots) pictures.forEach((one) => placePicture(feed.at, one));
  const { epochs } = history;
  const held_out = history.held_out ?? []; // older monitors measure nothing
  Object.assign(feed, since ? { epochs: merged(feed.epochs, epochs), held_out: merged(feed.held_out, held_out) } : { epochs, held_out });
  takeLists(feed, others);
  following.restAt = now() + REST_EVERY_SECONDS;
}

/** Replaces a picture's address, which counts from the run's own site; texts have none. */
function placePicture(run, picture) {
  if (picture.file) picture.file = pictureURL(run, picture.file);
}

/** The known losses with the new ones; all of them are asked for if somebody is new among those who are shown. */
async function withNewLines(following, news) {
  const { peers } = following.feed;
  if (Object.keys(news).every((name) => Object.hasOwn(peers, name))) return mergedLosses(peers, news);
  return (await get(following, `losses.json?${WHOLE.losses}`)).peers;
}

async function get(following, name) {
  const { document, headers } = await ask(following.feed.at, name);
  // The service worker answers from its copy where nobody else does. To a page that has newer news, that is no answer.
  const kept = headers.has("x-kept");
  if (kept && following.feed.phase === "known" && !following.feed.kept) throw new Error(`${name}: not answered`);
  following.feed.kept = kept;
  const dated = Date.parse(headers.get("date") ?? "");
  if (!Number.isNaN(dated)) following.serverAhead = dated / 1000 - now();
  return document;
}
