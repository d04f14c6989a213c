// A setup in words: names, the command, refusals.

import assert from "node:assert/strict";
import { test } from "node:test";

import { commandOf, inLabels, inWords, isNamed, nameOfConfig, namesOf } from "../../../../site/javascripts/calculator/words.mjs";
import { DEFAULTS, FIELDS, ownOf } from "./form_fields.mjs";

const field = (name) => FIELDS.find((one) => one.name === name);
const named = (...setups) => namesOf(FIELDS, setups.map((values) => ({ ...DEFAULTS, ...values })), DEFAULTS, ownOf);

test("a name consists of model and batch, then the differences from the defaults", () => {
  assert.deepEqual(named({}), [{ model: "gpt2, batch 1", others: [] }]);
  assert.deepEqual(named({ micro_batch_size: "", optimizer: "adamw8bit", checkpointing: "true" }), [
    { model: "gpt2, batch 1", others: ["AdamW, 8-bit", "Gradient checkpointing"] },
  ]);
});

test("a name also contains the differences from another setup", () => {
  const [first, second] = named({}, { optimizer: "adamw8bit" });
  assert.deepEqual([first.others, second.others], [["AdamW"], ["AdamW, 8-bit"]]);
});

test("a name omits fields that have no effect in its setup", () => {
  assert.deepEqual(named({ delta_rule: "true" })[0].others, []);
});

test("values in words are short, and have a label unless they are clear without it", () => {
  assert.equal(inWords(field("checkpointing"), "false"), "");
  assert.equal(inWords(field("gpu"), "t4"), "NVIDIA T4");
  assert.equal(inWords(field("gpu"), "cuda-48gb"), "CUDA card, 48 GB");
  assert.equal(inWords(field("optimizer"), "sgd"), "Optimizer: off");
  assert.equal(inWords(field("micro_batch_size"), ""), "");
  assert.equal(inWords(field("optimizer"), "x".repeat(99)), `Optimizer: ${"x".repeat(40)}`);
});

test("a pasted model is named by family and size, whichever keys its family uses", () => {
  assert.equal(nameOfConfig('{"model_type": "gpt2", "n_embd": 320, "n_layer": 4}'), "pasted gpt2, 320 wide, 4 layers");
  assert.equal(nameOfConfig('{"model_type": "t5", "d_model": 256}'), "pasted t5, 256 wide");
  assert.equal(nameOfConfig("null"), "pasted config.json");
});

test("a request's keys are the command's flags", () => {
  const setup = { model: "gpt2", micro_batch_size: 2, checkpointing: true, reversible: false };
  assert.equal(
    commandOf({ setup, gpu: "t4" }),
    "python -m calculator gpt2 --micro-batch-size 2 --checkpointing --no-reversible --gpu t4",
  );
  assert.equal(commandOf({ setup: { model: "gpt2" }, gpu: "" }), "python -m calculator gpt2");
});

test("texts from an address are quoted for the shell", () => {
  assert.equal(commandOf({ setup: { model: "x; rm -rf '~'" }, gpu: "" }), `python -m calculator 'x; rm -rf '"'"'~'"'"''`);
  assert.equal(
    commandOf({ setup: { config: { model_type: "gpt2" } }, gpu: "" }),
    `echo '{"model_type":"gpt2"}' | python -m calculator --config /dev/stdin`,
  );
});

test("a refusal shows labels in place of Python's keys", () => {
  const said = (sentence) => inLabels(sentence, FIELDS, "Its memory, GiB");
  assert.equal(said("micro_batch_size is a whole number, not 'x'."), "“Micro-batch” is a whole number, not 'x'.");
  assert.equal(said("model is one of gpt2 or dalle, not 'model'."), "“Model” is one of those in its list, not 'model'.");
  assert.equal(said("the model of model is null"), "the model of model is empty", "an English word is not replaced");
  assert.equal(
    said("gpu is cuda-Ngb, where N is a whole number of GiB from 1 to 1024, not 'cuda-x'ygb'."),
    "“Its memory, GiB” is a whole number of GiB from 1 to 1024, not 'x'y'.",
  );
});

test("a refusal marks the fields that it names as whole words", () => {
  const sentence = "micro_batch_size is a whole number";
  assert.deepEqual(FIELDS.filter(({ name }) => isNamed(name, sentence)), [field("micro_batch_size")]);
  assert.equal(isNamed("gpu", "gpus are"), false);
  assert.equal(isNamed("gpu", undefined), false);
});
