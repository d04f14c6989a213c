// Addresses of runs, and the check of what their monitors send.

import assert from "node:assert/strict";
import { test } from "node:test";

import { siteURL } from "../../../../site/javascripts/address.mjs";
import { emptyFeed } from "../../../../site/javascripts/runs/feed.mjs";
import { OWN, pictureURL, runAt, withRun } from "../../../../site/javascripts/runs/address.mjs";
import { isDocument } from "../../../../site/javascripts/runs/documents.mjs";
import { keepChoice } from "../../../../site/javascripts/runs/links.mjs";
import { factsOf } from "../../../../site/javascripts/runs/list.mjs";

const HTTP = "http://site.example/join/";
const HTTPS = "https://site.example/join/";
const keyOf = (text) => runAt(text, HTTP).key;

test("an address is taken as readers paste it", () => {
  for (const text of ["https://run.example", " run.example/ ", "https://run.example/dashboard/", "https://run.example/join", "https://run.example/recipe.toml", "https://run.example/live/run.json?x=1#y"]) {
    assert.deepEqual(runAt(text, HTTPS), { key: "https://run.example", base: "https://run.example/", title: "run.example" });
  }
  assert.equal(keyOf("http://203.0.113.7:8000"), "http://203.0.113.7:8000");
  assert.equal(keyOf("https://host.example/runs/one/"), "https://host.example/runs/one");
});

test("what is no address of a monitor, or could be more than a word in a shell, is refused", () => {
  const refused = [
    "", "not an address", "javascript:alert(1)", "ftp://run.example", "file:///etc/passwd", "https://me:secret@run.example",
    "https://run.example/$(reboot)", "https://run.example/;reboot", "https://run.example/a'b", "https://run.example/a&b", "https://run.example/*",
    `https://run.example/${"a".repeat(300)}`, "data:text/html,x", "//run.example;x",
  ];
  for (const text of refused) assert.match(runAt(text, HTTPS).fault ?? "", /is not a monitor's address/, text);
});

test("a page with https says why it cannot ask a monitor at http, unless that is on the reader's computer", () => {
  assert.match(runAt("http://run.example", HTTPS).fault, /came by https.*open http:\/\/run\.example\/ itself/);
  assert.equal(runAt("http://run.example", HTTP).fault, undefined);
  assert.equal(runAt("http://127.0.0.1:8000", HTTPS).fault, undefined);
  assert.equal(runAt("http://localhost:8000", HTTPS).fault, undefined);
});

test("the choice is kept in links to the pages of a run, and in no others", () => {
  const run = runAt("https://run.example", HTTPS);
  const chosen = withRun(siteURL("join/?system=wsl"), run);
  assert.equal(new URL(chosen).searchParams.get("run"), "https://run.example");
  assert.equal(withRun(chosen, OWN), siteURL("join/?system=wsl"));
  const link = (href, inList = null) => ({ href, closest: () => inList });
  const links = [link(siteURL("")), link(siteURL("dashboard/#x")), link(siteURL("calculator/")), link("https://run.example/join/"), link(siteURL("join/"), {})];
  keepChoice(links, chosen);
  assert.deepEqual(links.map(({ href }) => new URL(href).searchParams.has("run")), [true, true, false, false, false]);
  assert.equal(new URL(links[1].href).hash, "#x");
  keepChoice(links, siteURL("join/"));
  assert.equal(links[0].href, siteURL(""));
});

test("pictures come from the run's own folder of pictures only", () => {
  const run = { base: "https://run.example/a/" };
  assert.equal(pictureURL(run, "/live/pictures/000010/0.png"), "https://run.example/a/live/pictures/000010/0.png");
  for (const file of ["https://elsewhere.example/live/pictures/0.png", "//elsewhere.example/x", "/live/pictures/../../x", "/recipe.toml", "javascript:alert(1)", "http://["]) {
    assert.equal(pictureURL(run, file), "data:,", file);
  }
});

const STATE = { time: 1, status: "running", epoch: null, loss: null, active_peers: 2, total_samples: 3 };
const RUN = { run_id: "demo", title: "Shapes", total_epochs: 40 };

test("documents of a run are taken, also with more in them, and so is that of a site without one", () => {
  assert.ok(isDocument("run.json", {}));
  assert.ok(isDocument("run.json", { ...RUN, prompts: [] }));
  assert.ok(isDocument("state.json", { ...STATE, more: [] }));
  assert.ok(isDocument("losses.json", { peers: { constructor: [[1, 2.5], [2, null]] } }));
  assert.ok(isDocument("pictures.json", { snapshots: [{ epoch: 1, pictures: [{ prompt: "a", text: "b" }] }] }));
});

test("other types, endless texts and numbers out of range are refused", () => {
  const wrong = [
    ["run.json", null], ["run.json", "<b>"], ["run.json", { ...RUN, title: { toString: 1 } }], ["run.json", { ...RUN, join_command: ["x"] }],
    ["run.json", { ...RUN, title: "x".repeat(10_001) }], ["run.json", { ...RUN, total_epochs: "40" }], ["state.json", { ...STATE, active_peers: "2" }],
    ["state.json", { ...STATE, updated_every_seconds: 0 }], ["state.json", { ...STATE, time: 1e300 }], ["state.json", []], ["history.json", { epochs: {} }], ["history.json", { epochs: [], held_out: [{ epoch: 1, loss: "3" }] }],
    ["losses.json", { peers: { ada: [1] } }], ["leaderboard.json", { volunteers: [{ name: 1 }] }], ["events.json", { events: [{ time: 1e20, name: "", kind: "", text: "" }] }],
    ["pictures.json", { snapshots: [{ epoch: 1, pictures: [{ prompt: "a", file: 3 }] }] }],
  ];
  for (const [name, value] of wrong) assert.equal(isDocument(name, value), false, JSON.stringify(value)?.slice(0, 80));
});

test("a run's line says what it trains, who takes part and what it needs", () => {
  const run = { ...RUN, description: "It draws.", parameters: 1234, least_memory_bytes: 3 * 2 ** 30, sent_bytes: 1_400_000 };
  const feed = { ...emptyFeed("known"), run, state: STATE, total: 1 };
  assert.deepEqual(factsOf(feed, "It goes on."), [
    "It draws.", "It has 1\u202f234 parameters.", "It goes on.", "2 volunteers take part now.",
    "A volunteer needs at least 3 GiB of memory beside Python and PyTorch.", "In a small group, each volunteer sends about 1.3 MiB per epoch.",
  ]);
  assert.deepEqual(factsOf({ ...feed, run: RUN, state: { ...STATE, status: "finished" } }, ""), ["1 volunteer took part."]);
});
