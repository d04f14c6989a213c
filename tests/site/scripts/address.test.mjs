// The calculator's address.

import assert from "node:assert/strict";
import { test } from "node:test";

import { addressOf, goTo, joinAddress, partsOf } from "../../../site/javascripts/calculator/address.mjs";

const PAGE = "https://site.example/below/calculator/?model=old#step";

test("an address holds the setup and the pinned ones, and what it holds can be read", () => {
  const query = new URLSearchParams({ model: "gpt2", gpu: "" });
  const pinned = ["", "model=t5&gpu=t4"];
  const address = addressOf(PAGE, query, pinned);
  assert.equal(address, "https://site.example/below/calculator/?model=gpt2&gpu=&pin=&pin=model%3Dt5%26gpu%3Dt4");
  assert.equal(query.has("pin"), false, "the given query stays as it was");
  const read = partsOf(new URL(address).search);
  assert.deepEqual(read.pinned, pinned);
  assert.equal(read.query.get("model"), "gpt2");
});

test("a first setup has a bare address", () => {
  assert.equal(addressOf(PAGE, new URLSearchParams(), []), "https://site.example/below/calculator/");
});

test("to the join page goes what a volunteer may choose", () => {
  const join = (values) => joinAddress("https://site.example/join/?model=old", { config: "", gpu: "", ...values });
  assert.equal(join({ model: "gpt2", micro_batch_size: "2" }), "https://site.example/join/?micro_batch_size=2&model=gpt2");
  assert.equal(join({ model: "gpt2", micro_batch_size: "", config: "{}", gpu: "t4" }), "https://site.example/join/?micro_batch_size=&gpu=t4");
});

test("an address that is in the bar already makes no step", () => {
  const steps = [];
  globalThis.location = { href: PAGE };
  globalThis.history = {
    state: null,
    pushState: (state, _, url) => steps.push(["push", url]),
    replaceState: (state, _, url) => steps.push(["replace", url]),
  };
  goTo(PAGE, "push");
  goTo("https://site.example/a", "push");
  goTo("https://site.example/b", "replace");
  assert.deepEqual(steps, [["push", "https://site.example/a"], ["replace", "https://site.example/b"]]);
});
