// How an answer is shown: the sweep's lines, the pinned setups, the timeline in words, the list of models.

import assert from "node:assert/strict";
import { test } from "node:test";

import { matches, wordsOf } from "../../../../site/javascripts/calculator/combobox.mjs";
import { fitting, largest } from "../../../../site/javascripts/calculator/answer/pins.mjs";
import { instantTexts, stepLabel } from "../../../../site/javascripts/calculator/answer/show.mjs";
import { topOf, tracesOf, within } from "../../../../site/javascripts/calculator/answer/sweep.mjs";

const GIB = 2 ** 30;
const PARTS = ["weights", "gradients", "optimizer_state", "activations", "temporary"];
const point = (value, total, plain, room = 16) => ({
  value, total: total * GIB, plain: plain * GIB, room: room * GIB, parts: Object.fromEntries(PARTS.map((part) => [part, (total * GIB) / 5])),
});
const answer = (points, more = {}) => ({ points, gpu: "T4", present: null, ...more });
const traces = (given) => tracesOf(given, { names: PARTS, top: topOf(given), colour: (name) => name });

test("a line ends at the chart's top", () => {
  assert.deepEqual(within([1, 2, 3], [10, 20, 40], 30), { x: [1, 2, 2.5], y: [10, 20, 30] });
  assert.deepEqual(within([1, 2], [10, 20], 20), { x: [1, 2], y: [10, 20] });
  assert.deepEqual(within([1, 2], [50, 60], 20), { x: [], y: [] });
});

test("the chart cuts lines off only if plain training takes more than three times the setup's memory", () => {
  assert.equal(topOf(answer([point(1, 1, 2), point(2, 2, 6)])), null);
  assert.equal(topOf(answer([point(1, 1, 2), point(2, 2, 7)])), 6);
});

test("the parts are stacked, and the GPU's line is omitted if it is far above all others", () => {
  const near = traces(answer([point(1, 5, 8), point(2, 6, 9)]));
  assert.deepEqual(near.map(({ name }) => name), [...PARTS, "Plain", "T4"]);
  assert.deepEqual(near[0].y, [1, 1.2]);
  assert.deepEqual(near[6].y, [16, 16]);
  assert.equal(traces(answer([point(1, 1, 2, 80)])).length, 6, "on a scale of 80 GiB a line of 2 GiB would be flat");
  assert.equal(traces(answer([point(1, 5, 8)], { gpu: "" })).length, 6);
});

test("the current setup is a point", () => {
  const { x, y, mode } = traces(answer([point(1, 5, 8)], { present: { value: 1, total: 5 * GIB } })).at(-1);
  assert.deepEqual([x, y, mode], [[1], [5], "markers"]);
});

test("four setups are pinned, each once", () => {
  assert.deepEqual(fitting(["a", "b", "a", "", "c", "d"]), ["a", "b", "", "c"]);
});

test("bars are shares of the largest total; refused setups have none", () => {
  assert.equal(largest([{ pin: { total: 7 } }, { error: "refused" }, { pin: { total: 9 } }]), 9);
  assert.equal(largest([{ error: "refused" }]), 1);
});

test("the timeline's label names the peak", () => {
  const timeline = [
    { phase: "forward", place: "layer 1", peak: false, bytes: "1.0 GiB" },
    { phase: "backward", place: "layer 9", peak: true, bytes: "2.0 GiB" },
  ];
  assert.match(stepLabel(timeline), /in 2 stretches; the peak is in backward, layer 9: 2.0 GiB$/);
  assert.deepEqual(timeline.map(instantTexts), [["forward", "layer 1", "1.0 GiB"], ["backward", "layer 9 (the peak)", "2.0 GiB"]]);
});

test("a model is found by its words, with any punctuation", () => {
  const found = (typed) => matches("gpt2-large GPT-2, 774 M", wordsOf(typed));
  for (const typed of ["", "gpt2", "GPT-2 large", "large gpt2", "774", "2large"]) assert.ok(found(typed), typed);
  for (const typed of ["gpt3", "larger", "775"]) assert.ok(!found(typed), typed);
});
