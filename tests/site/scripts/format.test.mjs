// Times as the pages show them; calculator/units.py writes the same, and its tests have the same values.

import assert from "node:assert/strict";
import { test } from "node:test";

import { showDuration } from "../../../site/javascripts/parts/format.mjs";

const TIMES = [
  [5, "5 s"], [119, "119 s"], [120, "2 min"], [600, "10 min"], [3599, "1 h"], [3725, "1 h 2 min"], [7200, "2 h"],
  [172799, "48 h"], [172800, "2 days"], [202176, "2.3 days"], [10368000, "120 days"], [315360000, "10 years"],
];

test("times in units that fit", () => {
  for (const [seconds, shown] of TIMES) assert.equal(showDuration(seconds), shown);
  assert.equal(showDuration(-3), "0 s");
});
