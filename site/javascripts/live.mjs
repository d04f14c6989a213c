// Follows a run through /live/*.json of the site's own origin: the monitor answers there while a run is on; on a
// static site the same paths hold the recorded run, or an empty run.json where none was recorded.

import { showCount, showDate, showDuration } from "./format.mjs";

const ROOT = new URL("..", import.meta.url);
const REST_EVERY_SECONDS = 10;
const ANSWER_WITHIN_SECONDS = 10;

/** Address of a file that a document names by its absolute path, also where the site lies below a sub-path. */
export function siteURL(path) {
  return new URL(path.replace(/^\//, ""), ROOT).href;
}

/**
 * Calls `onChange(feed)` with what is known of the run, at each news and at least every second.
 *
 * feed: {phase: "loading" | "none" | "known", run, state, epochs, peers, volunteers, snapshots, events,
 *        changed: true where more than the time went on, age: seconds since the last answer,
 *        now: the server's clock, lost: whether answers are overdue}
 *
 * @param {object} options
 * @param {string[]} options.documents which of losses, leaderboard, pictures, events to follow
 * @returns function that stops it
 */
export function followRun(onChange, { documents = [] } = {}) {
  const feed = emptyFeed("loading");
  let stopped = false;
  let timer = 0;
  let turn = 0;
  let answeredAt = 0;
  let serverAhead = 0;
  let restAt = 0;

  async function get(name) {
    const response = await fetch(new URL(`live/${name}`, ROOT), {
      cache: "no-cache",
      signal: AbortSignal.timeout(ANSWER_WITHIN_SECONDS * 1000),
    });
    if (!response.ok) throw new Error(`${name}: ${response.status}`);
    const dated = Date.parse(response.headers.get("date") ?? "");
    if (!Number.isNaN(dated)) serverAhead = dated / 1000 - Date.now() / 1000;
    return response.json();
  }

  async function update() {
    const first = feed.phase !== "known";
    if (first) {
      const run = await get("run.json").catch(() => null);
      if (!run?.run_id) {
        feed.phase = "none";
        return;
      }
      feed.run = run;
    }
    const state = await get("state.json");
    const before = feed.state;
    if (before && ((state.epoch ?? -1) < (before.epoch ?? -1))) {
      // Another run, or the same one from an earlier checkpoint: forget what was drawn.
      Object.assign(feed, emptyFeed("loading"));
      return update();
    }
    feed.state = state;
    const newEpoch = first || state.epoch !== before.epoch || state.status !== before.status;
    if (newEpoch || Date.now() / 1000 >= restAt) {
      const since = feed.epochs.length ? `?since=${feed.epochs.at(-1).epoch - 2}` : "";
      const wanted = [get(`history.json${since}`), ...documents.map((name) => get(`${name}.json`))];
      const [history, ...others] = await Promise.all(wanted);
      const known = new Map(feed.epochs.map((row) => [row.epoch, row]));
      for (const row of history.epochs) known.set(row.epoch, row);
      feed.epochs = [...known.values()].sort((a, b) => a.epoch - b.epoch);
      for (const other of others) {
        for (const key of ["peers", "volunteers", "snapshots", "events"]) {
          if (key in other) feed[key] = other[key];
        }
      }
      restAt = Date.now() / 1000 + REST_EVERY_SECONDS;
    }
    feed.phase = "known";
    answeredAt = Date.now() / 1000;
    feed.changed = true;
  }

  async function loop(mine) {
    let wait = feed.state?.updated_every_seconds ?? 2;
    if (!document.hidden) {
      const before = feed.phase;
      try {
        await update();
      } catch {
        // Shown by the age of the last answer; asked again below.
      }
      if (stopped || mine !== turn) return;
      if (feed.phase !== before) feed.changed = true;
      tell();
      if (feed.phase === "none") wait = 15;
      if (isOver(feed) && feed.state.active_peers === 0) wait = 30;
    }
    timer = setTimeout(loop, wait * 1000, mine);
  }

  function tell() {
    const now = Date.now() / 1000;
    feed.now = now + serverAhead;
    feed.age = answeredAt ? Math.max(now - answeredAt, isOver(feed) ? 0 : feed.now - feed.state.time) : 0;
    feed.lost = feed.phase === "known" && !isOver(feed) && feed.age > overdueAfter(feed);
    onChange(feed);
    feed.changed = false;
  }

  function onVisible() {
    if (document.hidden) return;
    clearTimeout(timer);
    loop(++turn);
  }

  document.addEventListener("visibilitychange", onVisible);
  const ticker = setInterval(() => !document.hidden && tell(), 1000);
  loop(turn);
  return () => {
    stopped = true;
    clearTimeout(timer);
    clearInterval(ticker);
    document.removeEventListener("visibilitychange", onVisible);
  };
}

/** Whether nobody trains this run any more. */
export function isOver(feed) {
  return feed.state?.status === "finished" || feed.state?.status === "stopped";
}

/** How the run stands: {kind, label, text}, in words for people. */
export function describe(feed) {
  const { phase, run, state } = feed;
  if (phase === "loading") return { kind: "loading", label: "Looking", text: "Looking for a run …" };
  if (phase === "none") {
    return { kind: "none", label: "No run", text: "No run is live here now, and none was recorded yet." };
  }
  if (feed.lost) {
    const text = `The monitor has not answered for ${showDuration(feed.age)}. Volunteers go on without it; this page shows what it said last.`;
    return { kind: "lost", label: "No news", text };
  }
  const ended = state.last_epoch_at ? ` on ${showDate(state.last_epoch_at)}` : "";
  const epoch = state.epoch === null ? "before its first epoch" : `after epoch ${showCount(state.epoch)}`;
  switch (state.status) {
    case "finished":
      return { kind: "finished", label: "Finished", text: `This run finished${ended}, ${epoch}.` };
    case "stopped":
      return { kind: "stopped", label: "Stopped", text: `This run stopped${ended}, ${epoch}. It can go on from its last checkpoint.` };
    case "waiting":
      return { kind: "waiting", label: "Waiting", text: "No volunteer is active now. The run goes on as soon as somebody joins." };
  }
  const quiet = state.last_epoch_at ? feed.now - state.last_epoch_at : 0;
  if (quiet > slowAfter(feed)) {
    const text = `No epoch was finished for ${showDuration(quiet)}, longer than usual: volunteers may be leaving or joining.`;
    return { kind: "slow", label: "Slow", text };
  }
  const goal = run.total_epochs ? ` of ${showCount(run.total_epochs)}` : "";
  const where = state.epoch === null ? "the first epoch has not finished yet" : `epoch ${showCount(state.epoch)}${goal}`;
  return { kind: "running", label: "Live", text: `Training now: ${where}.` };
}

function slowAfter(feed) {
  const times = feed.epochs.slice(-20).map((row) => row.time);
  if (times.length < 3) return 180;
  return Math.max(60, (6 * (times.at(-1) - times[0])) / (times.length - 1));
}

function overdueAfter(feed) {
  return Math.max(8, 3 * (feed.state.updated_every_seconds ?? 2));
}

function emptyFeed(phase) {
  return {
    phase, run: null, state: null, epochs: [], peers: {}, volunteers: [], snapshots: [], events: [],
    changed: true, age: 0, now: Date.now() / 1000, lost: false,
  };
}
