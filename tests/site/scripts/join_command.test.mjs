// The join page's command, its address, and the values that other pages pass to it.

import assert from "node:assert/strict";
import { test } from "node:test";

import { addressOf, answerTo, batchIn, isLocal, sizeOf, systemIn } from "../../../site/javascripts/join/command.mjs";

const DEFAULTS = { system: "linux", device: "cpu", gpu: "16", ram: "8", link: "public", recipe: "demo" };
const CHOICES = {
  program: "python -m training",
  default: DEFAULTS,
  refusals: { "macos nvidia": "no such Macs", tpu: "not yet" },
  notes: { wsl: "in WSL" },
  recipes: {
    demo: { digest: "d1", machines: { "cpu-8": { samples: 4, uses: { disk: "1 GB" } }, "nvidia-16": { samples: 64 } } },
    large: { digest: "d2", machines: { "cpu-8": { samples: 0, refusal: "too small" } } },
  },
};
const LIVE = { recipe_digest: "d1", join_command: "python -m training join --recipe https://run.example/r.toml" };
const answer = (chosen, live = null) => answerTo(CHOICES, { ...DEFAULTS, batch: "", ...chosen }, live);

test("choices make a command with gaps", () => {
  const beginning = "python -m training join --recipe demo --initial-peers ADDRESS --name YOUR-NAME";
  assert.deepEqual(answer({}), { command: `${beginning} --device cpu --micro-batch-size 4`, uses: { disk: "1 GB" }, note: undefined });
  assert.equal(answer({ device: "nvidia", link: "router" }).command, `${beginning} --client-mode --micro-batch-size 64`);
  assert.equal(answer({ system: "wsl" }).note, "in WSL");
});

test("the address's micro-batch overrides the machine's own", () => {
  assert.match(answer({ batch: "7" }).command, /--micro-batch-size 7$/);
});

test("impossible choices are refused with a reason: by system, by device, by both, by memory", () => {
  assert.deepEqual(answer({ system: "macos", device: "nvidia" }), { words: "no such Macs" });
  assert.deepEqual(answer({ device: "tpu" }), { words: "not yet" });
  assert.deepEqual(answer({ recipe: "large" }), { words: "too small" });
});

test("a live run has its own command; its machines are known if the recipe is the site's", () => {
  assert.equal(answer({ recipe: "live" }, LIVE).command, `${LIVE.join_command} --device cpu --micro-batch-size 4`);
  const foreign = { ...LIVE, recipe_digest: "d9" };
  assert.equal(answer({ recipe: "live" }, foreign).command, `${LIVE.join_command} --device cpu`);
  const whole = { ...LIVE, join_command: `${LIVE.join_command} --micro-batch-size 2` };
  assert.equal(answer({ recipe: "live" }, whole).command, `${whole.join_command} --device cpu`);
});

test("a run on its own computer needs no client mode", () => {
  const local = { ...LIVE, join_command: `${LIVE.join_command} --initial-peers /ip4/127.0.0.1/tcp/9` };
  assert.ok(!answer({ recipe: "live", link: "router" }, local).command.includes("--client-mode"));
  assert.equal(isLocal({ recipe: "demo" }, local), false);
});

test("the address contains the used choices that differ, and always the system", () => {
  const at = (chosen) => addressOf("https://s.example/join/?model=x&micro_batch_size=3&ram=64", { ...DEFAULTS, ...chosen }, DEFAULTS).search;
  assert.equal(at({}), "?system=linux");
  assert.equal(at({ device: "nvidia", gpu: "40", ram: "64" }), "?system=linux&device=nvidia&gpu=40");
  assert.equal(at({ ram: "64", gpu: "40" }), "?ram=64&system=linux");
});

test("only a number is accepted as a micro-batch", () => {
  const batches = ["5", "05", "0", "5; rm -rf", "9999999", "-1", ""].map((text) => batchIn(new URLSearchParams({ micro_batch_size: text })));
  assert.deepEqual(batches, ["5", "", "", "", "", "", ""]);
  assert.equal(batchIn(new URLSearchParams()), "");
});

test("a card of the calculator becomes the largest listed memory that does not exceed it", () => {
  const size = (gpu) => sizeOf(gpu, { "rtx-3060": "12" }, ["8", "12", "16", "40"]);
  assert.deepEqual(["rtx-3060", "cuda-20gb", "cuda-16gb", "cuda-4gb", "cuda-<b>gb", "constructor", null].map(size), ["12", "16", "16", undefined, undefined, undefined, undefined]);
});

test("the system is the browser's", () => {
  assert.deepEqual([systemIn("", "MacIntel"), systemIn("Windows", ""), systemIn("", "Linux x86_64"), systemIn("", "")], ["macos", "wsl", "linux", "linux"]);
});
