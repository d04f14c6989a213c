// A setup as the form's texts: the fields that apply, the request, and the requests that are one change away.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  alternatives, applicable, completed, fitting, memoryOf, neighbours, parsed, parsedConfig, queryFor, requestFor, valuesFrom,
} from "../../../../site/javascripts/calculator/setup.mjs";
import { DEFAULTS, FIELDS, ownOf } from "./form_fields.mjs";

const names = (fields) => fields.map(({ name }) => name);
const request = (values) => requestFor(FIELDS, { ...DEFAULTS, ...values }, ownOf({ ...DEFAULTS, ...values }));

test("a request omits fields that are empty, have their default, or do not apply", () => {
  assert.deepEqual(request({}), { setup: { model: "gpt2" }, gpu: "t4" });
  assert.deepEqual(request({ optimizer: "adamw", micro_batch_size: "1" }).setup, { model: "gpt2" });
  assert.deepEqual(request({ delta_rule: "true" }).setup, { model: "gpt2" });
  assert.deepEqual(request({ delta_rule: "true", offload_optimizer: "true" }).setup, {
    model: "gpt2", offload_optimizer: true, delta_rule: true,
  });
});

test("a request names the GPU outside the setup; no GPU is an empty text", () => {
  assert.equal(request({ gpu: "" }).gpu, "");
  assert.deepEqual(request({ gpu: "cuda-20gb" }), { setup: { model: "gpt2" }, gpu: "cuda-20gb" });
});

test("a pasted config.json replaces the model", () => {
  const { setup } = request({ config: '{"model_type": "gpt2"}' });
  assert.deepEqual(setup, { config: { model_type: "gpt2" } });
  assert.equal(request({ config: "no JSON" }).setup.config, "no JSON");
});

test("a choice that cannot be combined has a reason, and a field without effect is omitted", () => {
  const plain = fitting(DEFAULTS, ownOf(DEFAULTS));
  assert.ok(!plain.impossible.offload_optimizer && plain.needless.delta_rule && plain.needless.reversible);
  const paged = fitting({ ...DEFAULTS, optimizer: "paged-adamw", offload_optimizer: "true" }, ownOf(DEFAULTS));
  assert.match(paged.impossible.offload_optimizer, /by itself/);
  assert.ok(paged.needless.delta_rule, "a paged optimizer is not offloaded");
  const painter = { ...DEFAULTS, model: "dalle" };
  assert.match(fitting(painter, ownOf(painter)).impossible.checkpointing, /nothing is left to checkpoint/);
  assert.ok(!fitting({ ...painter, reversible: "false" }, ownOf(painter)).impossible.checkpointing);
  assert.ok(!names(applicable(FIELDS, fitting(painter, ownOf(painter)))).includes("checkpointing"));
});

test("adapters are for models for which they are counted, and frozen weights for models with adapters", () => {
  const needless = (adapters, lora_rank) => fitting({ ...DEFAULTS, lora_rank }, { placeholders: {}, adapters }).needless;
  assert.ok(needless(undefined, "16").lora_rank && needless(undefined, "16").base_bits);
  assert.ok(!needless(true, "").lora_rank && needless(true, "").base_bits);
  assert.ok(!needless(true, "16").base_bits);
});

test("a rank is that of GaLore and APOLLO, which work on the GPU and train whole matrices", () => {
  const own = { placeholders: {}, adapters: true };
  assert.ok(fitting(DEFAULTS, own).needless.optimizer_rank);
  for (const optimizer of ["galore", "galore8bit", "apollo", "apollo-mini"]) {
    const { needless, impossible } = fitting({ ...DEFAULTS, optimizer, offload_optimizer: "true", lora_rank: "16" }, own);
    assert.ok(!needless.optimizer_rank && needless.delta_rule && needless.base_bits);
    assert.match(impossible.offload_optimizer, /on the GPU only/);
    assert.match(impossible.lora_rank, /LoRA freezes/);
    assert.match(impossible.shared_groups, /Not counted/);
  }
});

test("the optimizer updates in backward on one GPU, without accumulation and a scaled loss", () => {
  const reason = (changes) => fitting({ ...DEFAULTS, ...changes }, { placeholders: {} }).impossible.optimizer_in_backward;
  assert.ok(!reason({}));
  assert.match(reason({ accumulation_steps: "2" }), /without accumulation/);
  assert.match(reason({ precision: "amp-fp16" }), /all gradients/);
  assert.match(reason({ gpus: "2" }), /one GPU/);
  assert.match(reason({ offload_optimizer: "true" }), /on the host/);
  assert.match(reason({ optimizer: "muon" }), /Muon/);
});

test("Muon has no rank, works on the GPU and trains whole matrices", () => {
  const values = { ...DEFAULTS, optimizer: "muon", offload_optimizer: "true", lora_rank: "16" };
  const { needless, impossible } = fitting(values, { placeholders: {}, adapters: true });
  assert.ok(needless.optimizer_rank && needless.delta_rule && needless.base_bits);
  assert.match(impossible.offload_optimizer, /on the GPU only/);
  assert.match(impossible.lora_rank, /LoRA freezes/);
});

test("the host keeps what backward needs of models for which that is counted, without checkpointing, adapters and shards", () => {
  const own = { placeholders: {}, movable: true };
  const reason = (changes) => fitting({ ...DEFAULTS, ...changes }, own).impossible.offload_activations;
  assert.ok(fitting(DEFAULTS, ownOf(DEFAULTS)).needless.offload_activations);
  assert.ok(!fitting(DEFAULTS, own).needless.offload_activations && !reason({}));
  assert.match(reason({ checkpointing: "true" }), /without checkpointing/);
  assert.match(reason({ lora_rank: "8" }), /LoRA/);
  assert.match(reason({ gpus: "4", sharding: "zero-3" }), /several GPUs/);
  assert.match(reason({ shared_groups: "4" }), /share weights/);
  assert.ok(!reason({ gpus: "4", sharding: "none" }));
  const bus = (changes) => fitting({ ...DEFAULTS, offload_activations: "true", ...changes }, own).needless.pcie_generation;
  assert.ok(!bus({}) && bus({ checkpointing: "true" }) && bus({ offload_activations: "false" }));
});

test("the loss is computed in pieces where that is counted, by GPUs that compute with the whole output head", () => {
  const own = { placeholders: {}, movable: true, ligers: true };
  const reasons = (changes) => fitting({ ...DEFAULTS, loss: "liger", ...changes }, own).impossible;
  assert.ok(fitting(DEFAULTS, ownOf(DEFAULTS)).needless.loss && !fitting(DEFAULTS, own).needless.loss);
  assert.ok(!reasons({ gpus: "4", sharding: "zero-3" }).loss && !reasons({ gpus: "4" }).loss);
  assert.match(reasons({ gpus: "4", sharding: "tensor" }).loss, /divide the output head/);
  assert.match(reasons({}).offload_activations, /loss in pieces/);
});

test("sequences are packs where that is counted, not beside activations on the host or tensor parallelism", () => {
  const own = { placeholders: {}, movable: true, packs: true };
  const reason = (changes) => fitting({ ...DEFAULTS, packed: "true", ...changes }, own).impossible.packed;
  assert.ok(fitting(DEFAULTS, ownOf(DEFAULTS)).needless.packed && !fitting(DEFAULTS, own).needless.packed);
  assert.ok(!reason({}) && !reason({ gpus: "4", sharding: "zero-3" }));
  assert.match(reason({ offload_activations: "true" }), /on the host/);
  assert.match(reason({ gpus: "4", sharding: "tensor" }), /each sample together/);
});

test("products are in FP8 beside bfloat16, on one GPU that trains the whole model", () => {
  const own = { placeholders: {}, movable: true, adapters: true, fp8: true };
  const values = { ...DEFAULTS, precision: "bf16", fp8: "true" };
  const reason = (changes) => fitting({ ...values, ...changes }, own).impossible.fp8;
  assert.ok(fitting(values, ownOf(DEFAULTS)).needless.fp8 && !fitting(values, own).needless.fp8);
  assert.ok(!reason({}) && !reason({ precision: "amp-bf16", checkpointing: "true" }));
  assert.match(reason({ precision: "amp-fp16" }), /bfloat16/);
  assert.match(reason({ gpus: "4" }), /one GPU/);
  assert.match(reason({ lora_rank: "8" }), /LoRA/);
  assert.match(reason({ offload_activations: "true" }), /on the host/);
  assert.match(reason({ shared_groups: "4" }), /share weights/);
});

test("an address that asks for a divided model, or for activations on the host, gets it beside the page's own choices", () => {
  const defaults = { optimizer: "adamw8bit", checkpointing: "true", sharding: "none", offload_activations: "false", gpus: "1" };
  assert.deepEqual(completed({ sharding: "zero-3", gpus: "4" }), { optimizer: "adamw", sharding: "zero-3", gpus: "4" });
  assert.deepEqual(completed({ sharding: "zero-3", optimizer: "sgd" }), { optimizer: "sgd", sharding: "zero-3" });
  assert.deepEqual(completed({ offload_activations: "true" }), { checkpointing: "false", offload_activations: "true" });
  assert.deepEqual(completed({ sharding: "none" }), { sharding: "none" });
  for (const changes of [{}, { sharding: "zero-3" }, { sharding: "zero-3", optimizer: "adamw" }, { offload_activations: "true" }]) {
    const values = { ...defaults, ...changes };
    const query = Object.fromEntries(queryFor(values, defaults));
    assert.deepEqual({ ...defaults, ...completed(query) }, values, "an address gives back the setup that it is of");
  }
});

test("layers with different weights share none", () => {
  const { impossible } = fitting(DEFAULTS, { placeholders: {}, mixed: true });
  assert.match(impossible.shared_groups, /different weights/);
  assert.ok(!fitting(DEFAULTS, ownOf(DEFAULTS)).impossible.shared_groups);
});

test("models of pictures have a size of pictures in place of a length", () => {
  const { needless } = fitting(DEFAULTS, { placeholders: {}, pictures: true });
  assert.ok(needless.sequence_length && !needless.image_size);
  const others = fitting(DEFAULTS, ownOf(DEFAULTS)).needless;
  assert.ok(!others.sequence_length && others.image_size);
});

test("models that read texts beside pictures have a length as well as a size of pictures", () => {
  const { needless } = fitting(DEFAULTS, { placeholders: {}, pictures: true, texts: true });
  assert.ok(!needless.sequence_length && !needless.image_size);
});

test("what several GPUs divide is asked as it is chosen, whatever else is: Python refuses what it does not count", () => {
  const fields = [...FIELDS, { name: "gpus", kind: "number", usual: "1" }, { name: "sharding", kind: "choice", usual: "none", options: [] }];
  const asked = (changes, own = { placeholders: {} }) => requestFor(fields, { ...DEFAULTS, gpus: "4", sharding: "zero-3", ...changes }, own).setup.sharding;
  for (const changes of [{}, { optimizer: "adamw8bit" }, { offload_optimizer: "true" }, { lora_rank: "16" }, { shared_groups: "4" }]) {
    assert.equal(asked(changes), "zero-3");
  }
  assert.equal(asked({}, { placeholders: {}, pictures: true, adapters: true }), "zero-3");
  assert.equal(asked({ gpus: "1" }), undefined, "one GPU divides nothing");
});

test("a card that is given by its memory differs from a card with a name", () => {
  assert.equal(memoryOf("cuda-20gb"), "20");
  assert.equal(memoryOf("cuda-gb"), "");
  assert.equal(memoryOf("cuda-<b>\ngb"), "<b>\n");
  assert.equal(memoryOf("rtx-3090"), null);
  assert.equal(memoryOf(undefined), null);
});

test("texts become booleans and numbers where JSON has them", () => {
  assert.deepEqual(["true", "false", "12", "-0.5", "1e3"].map(parsed), [true, false, 12, -0.5, 1000]);
  assert.deepEqual(["", "1e999", "0x10", " 1", "12a", "Infinity", "NaN"].map(parsed), ["", "1e999", "0x10", " 1", "12a", "Infinity", "NaN"]);
  assert.deepEqual([parsedConfig("[1]"), parsedConfig("{")], [[1], "{"]);
});

test("an address contains the values that differ, and unknown names are dropped", () => {
  const values = { ...DEFAULTS, model: "dalle", gpu: "" };
  const query = queryFor(values, DEFAULTS);
  assert.equal(query.toString(), "model=dalle&gpu=");
  query.append("pin", "model=x");
  assert.deepEqual({ ...DEFAULTS, ...valuesFrom(query, DEFAULTS) }, values);
});

test("one change away are the switch's other state, near numbers, and all options of a list", () => {
  const field = (name) => FIELDS.find((one) => one.name === name);
  assert.deepEqual(alternatives(field("offload_optimizer"), "true", "20"), ["false"]);
  assert.deepEqual(alternatives(field("micro_batch_size"), "7", "20"), ["8", "6", "14", "3"]);
  assert.deepEqual(alternatives(field("micro_batch_size"), "1", "20"), ["2", "2"]);
  assert.deepEqual(alternatives({ kind: "number", placeholder: "1024" }, "", "20")[0], "1025");
  assert.deepEqual(alternatives(field("micro_batch_size"), "many", "20"), []);
  assert.deepEqual(alternatives(field("gpu"), "t4", "20"), ["", "t4", "cuda-20gb"]);
  assert.deepEqual(alternatives(field("gpu"), "cuda-20gb", "20").slice(3), ["cuda-21gb", "cuda-19gb", "cuda-40gb", "cuda-10gb"]);
  assert.deepEqual(alternatives(field("config"), "{}", "20"), []);
});

test("the field that was changed last is computed ahead first, and other models last", () => {
  const ahead = (changed) => neighbours(FIELDS, DEFAULTS, { changed, card: "20", ownOf });
  assert.equal(ahead("gpu")[0].gpu, "");
  assert.equal(ahead("card")[0].gpu, "", "the card's memory is part of the GPU");
  assert.equal(ahead("micro_batch_size")[0].setup.micro_batch_size, 2);
  assert.equal(ahead(undefined).at(-1).setup.model, "dalle");
  assert.ok(!ahead("delta_rule").some(({ setup }) => "delta_rule" in setup), "it does not apply");
});
