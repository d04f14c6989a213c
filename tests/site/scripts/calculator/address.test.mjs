// The site's addresses, and the calculator's.

import assert from "node:assert/strict";
import { test } from "node:test";

import { siteURL } from "../../../../site/javascripts/address.mjs";
import { addressOf, frameOf, goTo, isEmbedded, joinAddress, partsOf } from "../../../../site/javascripts/calculator/address.mjs";

const SITE = new URL("../../../../site/", import.meta.url).href;
const PAGE = "https://site.example/below/calculator/?model=old#step";

test("files of the site are named from its root, with or without a slash", () => {
  assert.equal(siteURL("/live/pictures/1.png"), `${SITE}live/pictures/1.png`);
  assert.equal(siteURL("live/run.json"), `${SITE}live/run.json`);
  assert.equal(siteURL(""), SITE);
});

test("the code of a frame names the setup, and a page in a frame stays one", () => {
  const code = frameOf("https://site.example/calculator/?model=gpt2&gpu=t4");
  const source = code.match(/src="([^"]*)"/)[1].replaceAll("&amp;", "&");
  assert.deepEqual(Object.fromEntries(new URL(source).searchParams), { model: "gpt2", gpu: "t4", embed: "1" });
  assert.ok(isEmbedded(new URL(source)) && !isEmbedded(new URL(PAGE)));
  assert.ok(isEmbedded(new URL(addressOf(source, new URLSearchParams({ model: "t5-3b" }), []))));
});

test("an address contains the setup and the pinned setups, and can be read back", () => {
  const query = new URLSearchParams({ model: "gpt2", gpu: "" });
  const pinned = ["", "model=t5&gpu=t4"];
  const address = addressOf(PAGE, query, pinned);
  assert.equal(address, "https://site.example/below/calculator/?model=gpt2&gpu=&pin=&pin=model%3Dt5%26gpu%3Dt4");
  assert.equal(query.has("pin"), false, "the given query is not changed");
  const read = partsOf(new URL(address).search);
  assert.deepEqual(read.pinned, pinned);
  assert.equal(read.query.get("model"), "gpt2");
});

test("the default setup has an address without a query", () => {
  assert.equal(addressOf(PAGE, new URLSearchParams(), []), "https://site.example/below/calculator/");
});

test("the join page's address contains a volunteer's own choices", () => {
  const join = (values) => joinAddress("https://site.example/join/?model=old", { config: "", gpu: "", ...values });
  assert.equal(join({ model: "gpt2", micro_batch_size: "2" }), "https://site.example/join/?micro_batch_size=2&model=gpt2");
  assert.equal(join({ model: "gpt2", micro_batch_size: "", config: "{}", gpu: "t4" }), "https://site.example/join/?micro_batch_size=&gpu=t4");
});

test("an address that is already in the bar adds no history entry", () => {
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
