// The figures: controls as texts, handles, addresses.

import assert from "node:assert/strict";
import { test } from "node:test";

import { isNeeded, placeOf, textAt } from "../../../site/javascripts/figures/controls.mjs";
import { differing, valuesIn } from "../../../site/javascripts/figures/figure.mjs";
import { between, moveBy } from "../../../site/javascripts/figures/handles.mjs";

const grows = { control: "peers", ends: [1, 9] };
const shrinks = { control: "delay", ends: [9, 1] };

test("a slider with stops stands for the text at its place", () => {
  const stops = ["1 Mbit/s", "10 Mbit/s", "100 Mbit/s"];
  assert.equal(textAt("1", stops), "10 Mbit/s");
  assert.equal(placeOf("10 Mbit/s", stops), "1");
  assert.equal(placeOf("56 kbit/s", stops), "0", "an unknown text is at the first stop");
  assert.deepEqual([textAt("7", undefined), placeOf("7", undefined)], ["7", "7"]);
});

test("a control matters with one value of another control", () => {
  const values = { task: "causal-lm", size: "1b" };
  assert.deepEqual([isNeeded("task=causal-lm", values), isNeeded("task=text-to-image", values)], [true, false]);
});

test("an address contains the values that differ, by figure and control", () => {
  const given = new URLSearchParams("swarm.peers=5&other.peers=6&swarm.x=1");
  assert.deepEqual(valuesIn(given, "swarm", { peers: "4", delay: "2" }), { peers: "5", delay: "2" });
  assert.deepEqual(differing({ peers: "5", delay: "2" }, { peers: "4", delay: "2" }), [["peers", "5"]]);
});

test("a handle stays between its ends, in either order", () => {
  assert.deepEqual([between([1, 9], 0.5), between([1, 9], -3), between([1, 9], 3), between([9, 1], 0.25)], [5, 1, 9, 7]);
});

test("arrows move a handle in the direction in which they point", () => {
  assert.deepEqual(moveBy({ x: grows, y: null }, "ArrowRight"), { control: "peers", steps: 1 });
  assert.deepEqual(moveBy({ x: shrinks, y: null }, "ArrowRight"), { control: "delay", steps: -1 });
  const both = { x: grows, y: shrinks };
  assert.deepEqual(moveBy(both, "ArrowUp"), { control: "delay", steps: 1 });
  assert.deepEqual(moveBy({ x: null, y: grows }, "ArrowUp"), { control: "peers", steps: -1 }, "it grows downwards");
});

test("on a handle with one direction both pairs of arrows move it", () => {
  assert.deepEqual(moveBy({ x: grows, y: null }, "ArrowUp"), { control: "peers", steps: 1 });
  assert.deepEqual(moveBy({ x: null, y: grows }, "ArrowRight"), { control: "peers", steps: 1 });
});

test("Home and End move to the ends, and other keys do nothing", () => {
  assert.equal(moveBy({ x: grows, y: null }, "End").steps, 1e6);
  assert.equal(moveBy({ x: grows, y: null }, "PageDown").steps, -10);
  assert.equal(moveBy({ x: grows, y: null }, "a"), null);
});
