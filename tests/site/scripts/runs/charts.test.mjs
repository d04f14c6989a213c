// The geometry of the dashboard's charts, and what they tell at the pointer.

import assert from "node:assert/strict";
import { test } from "node:test";

import { rangeOf } from "../../../../site/javascripts/dashboard/chart.mjs";
import { valuesAt } from "../../../../site/javascripts/dashboard/pointer.mjs";
import { areaPath, linePath, pointAt, pointsAround, roundValues, roundedOut, scaleOf, stepPath, thinned, valuesIn } from "../../../../site/javascripts/dashboard/scale.mjs";

const SCALE = scaleOf([0, 10], [0, 4], { width: 100, height: 40 });

test("values along an axis are round, and within its range", () => {
  assert.deepEqual(roundValues([0, 0.6], 6), [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]);
  assert.deepEqual(roundValues([1, 30_019], 6), [5000, 10_000, 15_000, 20_000, 25_000, 30_000]);
  assert.deepEqual(roundValues([1, 3], 6, true), [1, 2, 3], "there is no epoch 1.5");
  assert.deepEqual(roundValues([-0.25, 0.25], 5), [-0.2, -0.1, 0, 0.1, 0.2]);
});

test("the vertical axis goes from one round value to another, and always has an extent", () => {
  assert.deepEqual(roundedOut([0.7, 7.9], 6, false), [0, 8]);
  assert.deepEqual(roundedOut([122, 138], 5, false), [120, 140]);
  assert.deepEqual(roundedOut([122, 138], 5, true), [0, 150]);
  assert.deepEqual(roundedOut([3, 3], 5, false), [1.5, 4.5]);
  assert.deepEqual(roundedOut([0, 0], 5, true), [0, 0.5]);
  assert.deepEqual(roundedOut([], 5, false), [0, 1]);
});

test("a line is interrupted where a value is missing, and a lonely point is a dot", () => {
  assert.equal(linePath([[0, 4], [5, 2], [6, null], [10, 0]], SCALE), "M0 0h0L50 20M100 40h0");
  assert.equal(linePath([[5, null]], SCALE), "");
});

test("a step stays until the next point, and its area goes down to zero", () => {
  const points = [[0, 3], [5, 4], [10, 1]];
  assert.equal(stepPath(points, SCALE), "M0 10H50V0H100V30");
  assert.equal(areaPath(stepPath(points, SCALE), points, SCALE), "M0 10H50V0H100V30L100 40H0Z");
});

test("a part of a line reaches the edges", () => {
  const points = [1, 2, 3, 4, 5, 6].map((x) => [x, 10 * x]);
  assert.deepEqual(pointsAround(points, [2.5, 4.5]).map(([x]) => x), [2, 3, 4, 5]);
  assert.deepEqual(pointsAround(points, [3, 4]).map(([x]) => x), [3, 4]);
  assert.deepEqual(pointsAround(points, [-5, 9]), points);
  assert.deepEqual(valuesIn(points, [3, 4]), [30, 40]);
  assert.deepEqual(valuesIn([[1, 7], [9, 8], [10, null]], [3, 4]), [7, 8], "a line that only crosses the range");
});

test("thinning keeps the lowest and the highest of each part, and every gap", () => {
  const points = Array.from({ length: 10_000 }, (_, x) => [x, x === 4321 ? 99 : x === 4322 ? -99 : x === 7000 ? null : Math.sin(x)]);
  const kept = thinned(points, 100);
  assert.ok(kept.length <= 202, `${kept.length} points`);
  assert.deepEqual(kept, kept.toSorted(([a], [b]) => a - b));
  for (const x of [4321, 4322, 7000]) assert.ok(kept.includes(points[x]), `the point at ${x}`);
  assert.equal(thinned(points.slice(0, 200), 100).length, 200, "few points stay as they are");
});

test("a point is told where the line has one, or a mean over the epochs around, but not in a gap", () => {
  const exact = [[1, 10], [2, 20], [3, 30], [8, 80], [9, null]];
  assert.deepEqual([1, 2, 8].map((x) => pointAt(exact, x)?.[1]), [10, 20, 80]);
  assert.deepEqual([5, 9, 40].map((x) => pointAt(exact, x)), [null, null, null]);
  const means = [[0, 1], [60, 2], [120, 3]];
  assert.deepEqual([20, 40, 130, 200].map((x) => pointAt(means, x)?.[1]), [1, 2, 3, undefined]);
});

test("the box tells the values at the nearest epoch of the whole run, which comes first", () => {
  const line = (name, points) => ({ name, colour: name, points });
  const lines = [line("ada", [[1, 5], [2, 4]]), line("bob", [[7, 3]]), line("all", [[1, 6], [2, null], [3, 4], [7, 3.5]])];
  assert.deepEqual(valuesAt(lines, 1.4), { epoch: 1, values: [{ name: "all", colour: "all", value: 6 }, { name: "ada", colour: "ada", value: 5 }] });
  assert.deepEqual(valuesAt(lines, 6).values.map(({ name }) => name), ["all", "bob"]);
  assert.deepEqual(valuesAt([line("all", [])], 3).values, []);
});

test("the charts show the whole run, its last epochs, or a range, within the run", () => {
  const lines = [{ points: [[400, 1], [500, 1]] }, { points: [[1, 1], [1000, 1]] }, { points: [] }];
  assert.deepEqual(rangeOf({ last: null, range: null }, lines), [1, 1000]);
  assert.deepEqual(rangeOf({ last: 100, range: null }, lines), [900, 1000]);
  assert.deepEqual(rangeOf({ last: 5000, range: null }, lines), [1, 1000]);
  assert.deepEqual(rangeOf({ last: null, range: [300, 1200] }, lines), [300, 1000]);
  assert.deepEqual(rangeOf({ last: null, range: [300, 300] }, lines), [300, 301], "never without extent");
  assert.deepEqual(rangeOf({ last: null, range: null }, [{ points: [] }]), [0, 1]);
});
