// What a reader has solved: kept, saved and loaded, whatever a file contains and whatever the browser allows.

import assert from "node:assert/strict";
import { test } from "node:test";

import { afterAnswer, fileOf, keep, load, merged, otherVariant, readProgress } from "../../../site/javascripts/exercises/progress.mjs";

const SOME = { "home-link": { variant: 7, tries: 3, solved: [1, 7] } };

test("a saved file is read as it was", () => {
  assert.deepEqual(readProgress(fileOf(SOME)), SOME);
  assert.deepEqual(readProgress(fileOf({})), {});
});

test("what is no file of progress is refused", () => {
  for (const text of ["", "{", "[]", "null", '{"kind": "exercises", "version": 2, "exercises": {}}', '{"kind": "exercises", "version": 1}'])
    assert.equal(readProgress(text), null, text);
  assert.equal(readProgress(fileOf(SOME) + " ".repeat(1_000_001)), null);
});

test("what no exercise could have written is left out", () => {
  const bad = {
    "<b>": { variant: 1, tries: 0, solved: [] },
    "no-entry": 3,
    "no-variant": { variant: 0, tries: 0, solved: [] },
    "no-list": { variant: 1, tries: 0, solved: "1" },
    odd: { variant: 2, tries: -4, solved: [1, 1, "x", 1.5, 2] },
  };
  assert.deepEqual(readProgress(fileOf(bad)), { odd: { variant: 2, tries: 0, solved: [1, 2] } });
});

test("the browser's store may be forbidden, full, or hold something else", () => {
  delete globalThis.localStorage;
  assert.deepEqual(load(), {});
  keep(SOME);
  const kept = new Map();
  globalThis.localStorage = { getItem: (key) => kept.get(key) ?? null, setItem: (key, text) => kept.set(key, text) };
  assert.deepEqual(load(), {});
  keep(SOME);
  assert.deepEqual(load(), SOME);
  kept.set("exercises", "something else");
  assert.deepEqual(load(), {});
  const full = () => {
    throw new Error("full");
  };
  globalThis.localStorage = { getItem: full, setItem: full };
  assert.deepEqual(load(), {});
  keep(SOME);
});

test("an answer counts as a try, and a right one once for each variant", () => {
  const entry = SOME["home-link"];
  assert.deepEqual(afterAnswer(entry, false), { variant: 7, tries: 4, solved: [1, 7] });
  assert.deepEqual(afterAnswer(entry, true), { variant: 7, tries: 4, solved: [1, 7] });
  assert.deepEqual(afterAnswer({ ...entry, variant: 9 }, true).solved, [1, 7, 9]);
});

test("other numbers are never the same ones", () => {
  for (const current of [1, 2, 500, 1_000_000])
    for (const random of [0, 0.000001, 0.4999, 0.999999999]) {
      const other = otherVariant(current, () => random);
      assert.ok(other !== current && other >= 1 && other <= 1_000_000, `${current} ${random} ${other}`);
    }
});

test("two progresses become one, and none is lost", () => {
  const both = merged(SOME, { "home-link": { variant: 8, tries: 1, solved: [8] }, median: { variant: 2, tries: 1, solved: [] } });
  assert.deepEqual(both, {
    "home-link": { variant: 8, tries: 3, solved: [1, 7, 8] },
    median: { variant: 2, tries: 1, solved: [] },
  });
});
