// The join page's command, its address, and the values that other pages pass to it.

import assert from "node:assert/strict";
import { test } from "node:test";

import { addressOf, answerTo, batchIn, commandOf, isLocal, settingsOf, sizeOf, systemIn } from "../../../site/javascripts/join/command.mjs";

const DEFAULTS = { system: "linux", device: "cpu", gpu: "16", ram: "8", recipe: "demo" };
const CHOICES = {
  program: "nox --",
  join: "nox -- join https://RUN",
  run: "https://RUN",
  members: "--invitation -",
  demos: { demo: "nox -s demo" },
  demo_uses: { disk: "3 GB" },
  default: DEFAULTS,
  refusals: { "macos nvidia": "no such Macs", tpu: "not yet" },
  notes: { wsl: "in WSL" },
  recipes: {
    demo: { digest: "d1", machines: { "cpu-8": { samples: 4, uses: { disk: "1 GB" } }, "nvidia-16": { samples: 64 } } },
    large: { digest: "d2", machines: { "cpu-8": { samples: 0, refusal: "too small" } } },
  },
};
const LIVE = { recipe_digest: "d1", command: "nox -- join https://run.example" };
const answer = (chosen, live = LIVE) => answerTo(CHOICES, { ...DEFAULTS, recipe: "live", batch: "", name: "", ...chosen }, live);

test("without a run the command starts a demo, whatever the machine", () => {
  assert.deepEqual(answer({ recipe: "demo", device: "tpu", name: "ada" }, null), { command: "nox -s demo", uses: { disk: "3 GB" }, note: undefined });
  assert.equal(answer({ recipe: "demo", system: "wsl" }, null).note, "in WSL");
  assert.deepEqual(answerTo({ ...CHOICES, refusals: { windows: "no" } }, { ...DEFAULTS, system: "windows" }, null), { words: "no" });
});

test("choices make flags behind a live run's command", () => {
  assert.deepEqual(answer({}), { command: `${LIVE.command} --device cpu --micro-batch-size 4`, uses: { disk: "1 GB" }, note: undefined });
  assert.equal(answer({ device: "nvidia" }).command, `${LIVE.command} --micro-batch-size 64`);
  const whole = { ...LIVE, command: `${LIVE.command} --micro-batch-size 2` };
  assert.equal(answer({}, whole).command, `${whole.command} --device cpu`);
});

test("a name follows, quoted for the shell where it must be", () => {
  assert.match(answer({ name: "ada" }).command, / --name ada$/);
  assert.match(answer({ name: "Ada's $(machine)" }).command, / --name 'Ada'\\''s \$\(machine\)'$/);
});

test("the address's micro-batch overrides the machine's own", () => {
  assert.match(answer({ batch: "7" }).command, /--micro-batch-size 7$/);
});

test("impossible choices are refused with a reason: by system, by device, by both, by memory", () => {
  assert.deepEqual(answer({ system: "macos", device: "nvidia" }), { words: "no such Macs" });
  assert.deepEqual(answer({ device: "tpu" }), { words: "not yet" });
  assert.deepEqual(answer({}, { ...LIVE, recipe_digest: "d2" }), { words: "too small" });
});

test("of a recipe that is not the site's, the run's own documents say what it needs", () => {
  const foreign = { ...LIVE, recipe_digest: "d9", least_memory_bytes: 2 ** 30, sent_bytes: 2 ** 20 };
  const { command, uses } = answer({}, foreign);
  assert.equal(command, `${LIVE.command} --device cpu`);
  assert.match(uses.memory, /^at least 1 GiB/);
  assert.match(uses.network, /about 1 MiB sent/);
  assert.equal(uses.disk, "1 GB");
  assert.equal(answer({}, { ...LIVE, recipe_digest: "d9" }).uses.memory, undefined);
});

test("of another monitor only the address goes into the command", () => {
  const at = { key: "https://run.example" };
  const joined = "nox -- join https://run.example";
  assert.equal(commandOf(CHOICES, { join_command: "curl https://elsewhere.example | sh" }, at), joined);
  assert.equal(commandOf(CHOICES, { join_command: "x --invitation - ; y" }, at), `${joined} --invitation -`);
});

test("the site's own run has its own words, for the program of this page unless they name another", () => {
  assert.equal(commandOf(CHOICES, { join_command: "training-transformers-together join https://a.example" }, { key: "" }), "nox -- join https://a.example");
  const local = "python -m training join http://127.0.0.1:8000";
  assert.equal(commandOf(CHOICES, { join_command: local }, { key: "" }), local);
});

test("a notebook names the run's address, and the flags as the shell reads them", () => {
  const text = 'RUN = "https://run.example"  # one\nFLAGS = ""  # two';
  const live = { join_command: "join --invitation -", command: "nox -- join https://b.example --invitation -" };
  const settings = settingsOf(text, CHOICES, live, `${live.command} --name 'a "b" $1'`);
  assert.equal(settings, 'RUN = "https://b.example"  # one\nFLAGS = "--invitation - --name \'a \\"b\\" $1\'"  # two');
});

test("a run on its own computer is known by its address", () => {
  assert.ok(isLocal({ command: "nox -- join http://127.0.0.1:8000" }));
  assert.ok(!isLocal(LIVE));
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
