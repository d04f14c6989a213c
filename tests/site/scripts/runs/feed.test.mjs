// The page's knowledge of a run, the run's status, and how a page follows it.

import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";

import { describe, emptyFeed, isBefore, isOver, merged, mergedLosses, pauseAfter, takeLists, tellTime } from "../../../../site/javascripts/runs/feed.mjs";

const rows = (...epochs) => epochs.map((epoch) => ({ epoch, time: 10 * epoch, active_peers: 1, loss: 5 - epoch / 10 }));
const known = (state, more = {}) => ({
  ...emptyFeed("known"), run: { total_epochs: 40 }, epochs: rows(1, 2, 3, 4), now: 45,
  state: { status: "running", epoch: 4, last_epoch_at: 40, updated_every_seconds: 2, time: 44, active_peers: 3, ...state }, ...more,
});
const kind = (state, more) => describe(known(state, more)).kind;

test("a run's status", () => {
  assert.equal(describe(emptyFeed("loading")).kind, "loading");
  assert.equal(describe(emptyFeed("none")).kind, "none");
  assert.deepEqual(describe(known({})), { kind: "running", label: "Live", text: "Training now: epoch 4 of 40.", remedy: "" });
  assert.match(describe(known({ epoch: null, last_epoch_at: null })).text, /the first epoch has not finished yet/);
  for (const status of ["finished", "stopped", "waiting"]) assert.equal(kind({ status }), status);
  assert.match(describe(known({ status: "stopped", epoch: null, last_epoch_at: null })).text, /^This run stopped, before its first epoch/);
  assert.equal(kind({ status: "finished" }, { lost: true, age: 60 }), "lost");
});

test("a recording says that it is one, on which machine, and how to see a live run", () => {
  const told = describe(known({ status: "finished", stream: false }, { run: { total_epochs: 4, one_machine: true, cores: 2 }, total: 3 }));
  assert.deepEqual([told.kind, told.label], ["finished", "Recorded"]);
  assert.match(told.text, /^A recording\..*3 volunteers were programs on one computer with 2 cores\.$/);
  assert.match(told.remedy, /nox -s demo/);
  assert.equal(describe(known({ status: "finished", stream: true })).label, "Finished", "its monitor still answers");
});

test("the server's cause and remedy stand in place of the page's own words", () => {
  for (const status of ["waiting", "slow", "split", "stopped", "failed"]) {
    const told = describe(known({ status, cause: "It is so.", remedy: "Do that." }));
    assert.deepEqual([told.kind, told.text, told.remedy], [status, "It is so.", "Do that."]);
  }
  assert.match(describe(known({ status: "stopped", cause: "On purpose." }, { kept: true })).text, /^On purpose\. The server does not answer: this is the copy/);
  assert.match(describe(known({ status: "stopped", cause: "" }, { kept: true, offline: true })).text, /You are offline: this is the copy/);
});

test("nobody answers: what is not known is not said to be absent", () => {
  const offline = describe({ ...emptyFeed("unreachable"), offline: true });
  assert.deepEqual([offline.kind, offline.label], ["offline", "Offline"]);
  assert.match(offline.text, /kept no copy of the run/);
  const gone = describe(emptyFeed("unreachable"));
  assert.deepEqual([gone.kind, gone.label], ["lost", "No answer"]);
  for (const { text } of [offline, gone]) assert.doesNotMatch(text, /recorded/);
  assert.equal(describe(known({}, { lost: true, age: 60, offline: true })).kind, "offline");
});

test("a run without answers is lost, unless it is over", () => {
  const told = (state, clock) => {
    const feed = known(state);
    tellTime(feed, { now: 100, serverAhead: 0, answeredAt: 99, ...clock });
    return [feed.age, feed.lost];
  };
  assert.deepEqual(told({ time: 99 }), [1, false]);
  assert.deepEqual(told({ time: 92 }), [8, false]);
  assert.deepEqual(told({ time: 91 }), [9, true], "a new answer may contain an old state");
  assert.deepEqual(told({ time: 91, updated_every_seconds: 10 }), [9, false]);
  assert.deepEqual(told({ time: 101 }, { serverAhead: 5 }), [4, false]);
  assert.deepEqual(told({ time: 1, status: "finished" }), [1, false]);
  assert.deepEqual(told({}, { answeredAt: 0 }), [0, false]);
  assert.deepEqual(told({ time: 99 }, { offline: true }), [1, false], "a server on this computer still answers");
  assert.deepEqual(told({ time: 99 }, { offline: true, failed: true }), [1, true]);
});

test("new epochs and lists are added to the known ones", () => {
  assert.deepEqual(merged(rows(1, 2), [{ epoch: 2, loss: 9 }, ...rows(3)]).map((row) => [row.epoch, row.loss]), [[1, 4.9], [2, 9], [3, 4.7]]);
  const feed = known({});
  takeLists(feed, [{ peers: { ada: [] } }, { events: [1], secrets: [2] }]);
  assert.deepEqual([feed.peers, feed.events, feed.volunteers, feed.secrets], [{ ada: [] }, [1], [], undefined]);
  assert.deepEqual(mergedLosses({ ada: [[1, 5], [2, 4]] }, { ada: [[2, 3], [3, 2]], bo: [[3, 1]] }), { ada: [[1, 5], [2, 3], [3, 2]], bo: [[3, 1]] });
  const odd = JSON.parse('{"constructor": [[1, 5]], "__proto__": [[1, 4]]}');
  assert.deepEqual(Object.entries(mergedLosses({}, odd)), Object.entries(odd));
  assert.deepEqual(Object.entries(mergedLosses(odd, odd)), Object.entries(odd));
});

test("an earlier state belongs to another run", () => {
  assert.equal(isBefore({ epoch: 3 }, { epoch: 4 }), true);
  assert.equal(isBefore({ epoch: null }, { epoch: 0 }), true);
  assert.equal(isBefore({ epoch: 4 }, { epoch: 4 }), false);
  assert.equal(isBefore({ epoch: 0 }, null), false);
});

test("a run that is over, or does not exist, is asked for seldom", () => {
  assert.equal(pauseAfter(emptyFeed("loading")), 2);
  assert.equal(pauseAfter(emptyFeed("none")), 15);
  assert.equal(pauseAfter(emptyFeed("unreachable")), 5);
  assert.equal(isOver(known({ status: "failed", stream: true })), false, "its monitor still runs");
  assert.equal(isOver(known({ status: "failed", stream: false })), true);
  assert.equal(pauseAfter(known({ updated_every_seconds: 0.3 })), 0.3);
  assert.equal(pauseAfter(known({ status: "stopped" })), 2, "a volunteer is still active");
  assert.equal(pauseAfter(known({ status: "stopped", active_peers: 0 })), 30);
});

let documents;
let asked;
let listeners;

/** Resolves when all requests so far are answered; the mocked timers do not advance. */
const settled = async () => {
  for (let turn = 0; turn < 50; turn++) await Promise.resolve();
};

beforeEach(() => {
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout", "setInterval"] });
  asked = [];
  listeners = {};
  globalThis.document = {
    hidden: false,
    addEventListener: (name, listener) => (listeners[name] = listener),
    removeEventListener: (name) => delete listeners[name],
  };
  globalThis.location = { href: "https://site.example/dashboard/" };
  globalThis.fetch = async (url) => {
    if (String(url).endsWith("/runs.json")) return { json: async () => [] };
    const name = String(url).split("/live/")[1];
    asked.push(name);
    const found = documents[name.split(".")[0]];
    return { ok: Boolean(found), status: 404, headers: new Headers(), text: async () => JSON.stringify(found) };
  };
  documents = {
    run: { run_id: "shapes", title: "Shapes", total_epochs: 40 },
    state: { status: "running", epoch: 4, time: Date.now() / 1000, active_peers: 1, total_samples: 9, updated_every_seconds: 2 },
    history: { epochs: rows(1, 2, 3, 4) },
    events: { events: [{ time: 1, name: "", kind: "started", text: "began" }] },
  };
});

const { followRun } = await import("../../../../site/javascripts/runs/live.mjs");

test("a page asks for everything at first, then for the state, and at a new epoch for the rest", async () => {
  const told = [];
  const stop = followRun((feed) => told.push({ phase: feed.phase, changed: feed.changed, epochs: feed.epochs.length, heldOut: feed.held_out.map(({ epoch }) => epoch) }), { documents: ["events"] });
  await settled();
  assert.deepEqual(asked, ["run.json", "state.json", "history.json?points=1000", "events.json"]);
  assert.deepEqual(told, [{ phase: "known", changed: true, epochs: 4, heldOut: [] }]);
  mock.timers.tick(2000);
  await settled();
  assert.deepEqual(asked.slice(4), ["state.json"]);
  documents.state.epoch = 5;
  documents.history = { epochs: rows(4, 5), held_out: [{ epoch: 4, loss: 1, samples: 2, tokens: 3 }] };
  mock.timers.tick(2000);
  await settled();
  assert.deepEqual(asked.slice(5), ["state.json", "history.json?since=2", "events.json"]);
  assert.deepEqual([told.at(-1).epochs, told.at(-1).heldOut], [5, [4]]);
  stop();
  mock.timers.tick(60_000);
  await settled();
  assert.equal(asked.length, 8);
  assert.deepEqual(listeners, {});
});

test("after another run's state everything is asked for again", async () => {
  let feed;
  const stop = followRun((news) => (feed = news));
  await settled();
  documents.run = { run_id: "other", title: "Other", total_epochs: 40 };
  documents.state.epoch = 1;
  documents.history.epochs = rows(1);
  mock.timers.tick(2000);
  await settled();
  assert.deepEqual([feed.run.run_id, feed.epochs.length], ["other", 1]);
  stop();
});

test("a hidden page asks nothing, and asks at once when it is visible again", async () => {
  const stop = followRun(() => {});
  await settled();
  document.hidden = true;
  mock.timers.tick(60_000);
  await settled();
  assert.equal(asked.length, 3);
  document.hidden = false;
  listeners.visibilitychange();
  await settled();
  assert.equal(asked.length, 4);
  stop();
});

test("without a run the page says so", async () => {
  documents = {};
  const phases = [];
  const stop = followRun(({ phase }) => phases.push(phase));
  await settled();
  assert.deepEqual([asked, phases], [["run.json"], ["none"]]);
  stop();
});
