// The replay of a recorded run: what is so at a time, and how fast it plays.

import assert from "node:assert/strict";
import { test } from "node:test";

import { clock, lastBefore, speedAt, stateText } from "../../../../site/javascripts/home/timeline.mjs";

test("playing is slow around what the list of moments tells", () => {
  const slow = (at) => speedAt(at, [60, 100]) < speedAt(0, [60, 100]);
  assert.deepEqual([30, 57, 59, 61, 63, 65, 99, 105].map(slow), [false, false, true, true, true, false, true, false]);
});

test("at a time the last update before it is shown", () => {
  const updates = [{ at: 5 }, { at: 9 }, { at: 20 }];
  const shown = (at) => lastBefore(updates, at, (update) => update.at)?.at;
  assert.deepEqual([4.9, 5, 19.9, 20, 1000].map(shown), [undefined, 5, 9, 20, 20]);
});

test("an update in words", () => {
  assert.equal(stateText(undefined), "No epoch is done yet");
  assert.equal(stateText({ epoch: 7, loss: 2.345, together: 3 }), "Epoch 7, loss 2.3, by 3 volunteers");
  assert.equal(stateText({ epoch: 8, loss: null, together: 1 }), "Epoch 8, by one volunteer alone");
});

test("times are minutes and seconds", () => {
  assert.deepEqual([0, 9.99, 60, 125.9].map(clock), ["0:00", "0:09", "1:00", "2:05"]);
});
