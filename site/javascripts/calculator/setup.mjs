// A setup as the form's texts: which fields apply, the request to Python, and the requests that are one change away.
// Nothing here touches the document: form.mjs passes its controls as fields, so that node can test this module.

/**
 * @typedef {object} Field one control of the form
 * @property {string} name its name in the form, in addresses and in requests
 * @property {"choice" | "search" | "switch" | "number" | "config"} kind
 * @property {string} [usual] the calculator's default as a text: a request omits it
 * @property {string} [placeholder] the number that an empty text means
 * @property {string} [label] the label that readers see
 * @property {Iterable<{value: string, text: string}>} [options] a list's options
 *
 * @typedef {Record<string, string>} Values field name -> text; an empty text means the model's own value
 *
 * @typedef {object} Own a model's own values, from calculator/page/models.py
 * @property {Record<string, string>} placeholders
 * @property {Record<string, number>} [most] the largest numbers of fields that it accepts
 * @property {boolean} [text_to_image]
 * @property {boolean} [pictures] whether it reads pictures, whose size decides the number of tokens
 * @property {boolean} [texts] whether it reads texts beside pictures, so that it has a length as well
 * @property {boolean} [mixed] whether its layers have different weights, so that they cannot share them
 * @property {boolean} [two_stacks]
 * @property {boolean} [reversible]
 * @property {boolean} [packs] whether its sequences may be packs of samples
 * @property {boolean} [fp8] whether products in FP8 are counted for it
 * @property {boolean} [ligers] whether Liger's loss in pieces is counted for its family
 * @property {boolean} [adapters] whether LoRA is counted for its family
 *
 * @typedef {(values: Values) => Own} OwnOf
 */

/** The option "another card": a card's name without its memory. */
export const ANOTHER_CARD = "cuda-gb";

/** Optimizers with a rank, from calculator/parts/low_rank.py. */
const LOW_RANK = ["galore", "galore8bit", "apollo", "apollo-mini"];
const OF_MATRICES = [...LOW_RANK, "muon"];

export const cardOf = (memory) => `cuda-${memory}gb`;

/** The memory in a card's name, as text and unchecked; null if the name has another form. */
export const memoryOf = (gpu) => /^cuda-(.*)gb$/s.exec(gpu)?.[1] ?? null;

/**
 * Which fields do not apply to a setup: `impossible` maps a field to the reason why its choice cannot be combined with
 * the others, `needless` to whether it has no effect. What several GPUs divide is not here: a model takes some of the
 * choices, and Python says why it refuses another.
 */
export function fitting(values, own) {
  const reversible = values.reversible === "" ? own.reversible : values.reversible === "true";
  const paged = values.optimizer.startsWith("paged");
  const ofMatrices = OF_MATRICES.includes(values.optimizer);
  const onGpu = (paged && "A paged optimizer moves its state to the host by itself.")
    || (ofMatrices && "GaLore, APOLLO and Muon are counted on the GPU only.");
  const offloaded = values.offload_optimizer === "true" && !onGpu;
  const immovable = unmovable(values, own);
  const moving = values.offload_activations === "true" && own.movable && !immovable;
  return {
    own,
    impossible: {
      model: values.config && "The pasted config.json is in use; remove it to choose a model.",
      checkpointing: own.text_to_image && reversible && "Reversible layers keep no activations: nothing is left to checkpoint.",
      sequence_length: own.text_to_image && "Fixed by the model's text length and image grid.",
      shared_groups: (own.mixed && "The layers of this model have different weights.")
        || (ofMatrices && "Not counted with GaLore, APOLLO and Muon."),
      lora_rank: ofMatrices && "GaLore, APOLLO and Muon train whole matrices, which LoRA freezes.",
      offload_optimizer: onGpu,
      optimizer_in_backward: afterBackward(values, own, offloaded),
      loss: onlyWhole(values),
      packed: unpackable(values, moving),
      fp8: own.fp8 && unmultiplied(values, own, moving),
      offload_activations: immovable,
    },
    needless: {
      card: memoryOf(values.gpu) === null,
      sequence_length: Boolean(own.pictures && !own.texts),
      image_size: !own.pictures,
      target_length: !own.two_stacks,
      reversible: !own.text_to_image,
      lora_rank: !own.adapters,
      base_bits: !own.adapters || !values.lora_rank || ofMatrices,
      sharding: ["", "1"].includes(values.gpus),
      loss: !own.ligers,
      packed: !own.packs,
      fp8: !own.fp8,
      offload_activations: !own.movable,
      optimizer_rank: !LOW_RANK.includes(values.optimizer),
      optimizer_impl: values.optimizer !== "adamw",
      embeddings_32bit: !values.optimizer.includes("8bit"),
      delta_rule: !offloaded,
      pcie_generation: !offloaded && !moving,
    },
  };
}

/** Why the optimizer cannot update each parameter during backward; false if it can. */
function afterBackward({ accumulation_steps, gpus, optimizer, precision, fp8 }, own, offloaded) {
  if (own.text_to_image) return "Not counted for this model.";
  if (accumulation_steps > 1) return "Every micro-batch would update the weights; counted without accumulation.";
  if (precision === "amp-fp16") return "A scaled loss needs all gradients before an update.";
  if (gpus > 1) return "Counted on one GPU.";
  if (offloaded) return "The optimizer is on the host.";
  return (optimizer === "muon" && "Not counted with Muon.") || (own.fp8 && fp8 === "true" && "Not counted with FP8.");
}

/** Ways to divide a model in which all GPUs compute each sample together. */
const TOGETHER = ["tensor", "tensor-sequence"];

/** Why the host cannot keep what backward needs; false if it can. */
function unmovable({ checkpointing, lora_rank, sharding, gpus, shared_groups, loss }, own) {
  if (checkpointing && checkpointing !== "false") return "Counted without checkpointing.";
  if (lora_rank) return "Not counted with LoRA; empty its rank.";
  if (own.ligers && loss === "liger") return "Not counted with a loss in pieces.";
  if (gpus > 1 && sharding && sharding !== "none") return "Not counted where several GPUs divide the model.";
  return Boolean(own.movable && shared_groups) && "Not counted for layers that share weights.";
}

/** Why sequences cannot be packs of samples; false if they can. */
function unpackable({ sharding, gpus }, moving) {
  if (moving) return "Not counted with activations on the host.";
  return gpus > 1 && TOGETHER.includes(sharding) && "Not counted where several GPUs compute each sample together.";
}

/** Why products cannot be in FP8; false if they can. */
function unmultiplied({ gpus, lora_rank, precision, shared_groups }, own, moving) {
  if (!precision.endsWith("bf16")) return "It stands beside bfloat16; choose that precision.";
  if (gpus > 1) return "Counted on one GPU.";
  if (own.adapters && lora_rank) return "Not counted with LoRA; empty its rank.";
  if (moving) return "Not counted with activations on the host.";
  return Boolean(shared_groups) && "Not counted for layers that share weights.";
}

/** Why the loss cannot be computed in pieces; false if it can. */
function onlyWhole({ sharding, gpus }) {
  return gpus > 1 && TOGETHER.includes(sharding) && "Not counted where several GPUs divide the output head.";
}

/** The fields that apply to a setup. */
export function applicable(fields, { impossible, needless }) {
  return fields.filter(({ name }) => !impossible[name] && !needless[name]);
}

/**
 * The request for some texts: the fields that apply and differ from the calculator's defaults. Python validates them.
 */
export function requestFor(fields, values, own) {
  const setup = {};
  for (const { name, usual } of applicable(fields, fitting(values, own))) {
    const text = values[name];
    if (name === "gpu" || text === "" || text === usual) continue;
    setup[name] = name === "config" ? parsedConfig(text) : parsed(text);
  }
  return { setup, gpu: values.gpu };
}

/** The fields that differ from their defaults, or from what follows from these, as a query. */
export function queryFor(values, defaults) {
  const changed = Object.fromEntries(Object.entries(values).filter(([name, value]) => value !== defaults[name]));
  const read = { ...defaults, ...completed(changed) };
  const others = Object.entries(values).filter(([name, value]) => value !== read[name]);
  return new URLSearchParams({ ...changed, ...Object.fromEntries(others) });
}

/** The texts in a query; names that the form does not have are dropped. */
export function valuesFrom(query, defaults) {
  return Object.fromEntries([...query].filter(([name]) => Object.hasOwn(defaults, name)));
}

/**
 * The texts of an address, with what follows from them: the page's own optimizer, in 8 bits, is not divided among GPUs,
 * and its checkpointing keeps no activations that the host could have. The form would leave out what the address asks for.
 */
export function completed(given) {
  const follows = {};
  if (given.sharding && given.sharding !== "none") follows.optimizer = "adamw";
  if (given.offload_activations === "true") follows.checkpointing = "false";
  return { ...follows, ...given };
}

/**
 * The requests that are one change away from a setup.
 *
 * Python answers them in this order. Other values of the field that was changed last come first, because readers often
 * change the same field again. Other models come last, because there are many of them.
 *
 * @param {Field[]} fields
 * @param {Values} values
 * @param {{changed: string | undefined, card: string, ownOf: OwnOf}} now name of the field that was changed last; the
 *   memory in the field for another card, which has a value even while the list names a card
 */
export function neighbours(fields, values, { changed, card, ownOf }) {
  const first = changed === "card" ? "gpu" : changed;
  const order = ({ name, kind }) => (name === first ? 0 : kind === "search" ? 2 : 1);
  return applicable(fields, fitting(values, ownOf(values)))
    .sort((one, other) => order(one) - order(other))
    .flatMap((field) => alternatives(field, values[field.name], card).map((text) => ({ ...values, [field.name]: text })))
    .map((next) => requestFor(fields, next, ownOf(next)));
}

/** Texts to which a reader may set a field next. */
export function alternatives({ kind, options, placeholder }, text, card) {
  if (kind === "switch") return [String(text !== "true")];
  if (kind === "number") return near(text || placeholder);
  if (kind !== "choice" && kind !== "search") return [];
  const listed = [...options].map(({ value }) => (value === ANOTHER_CARD ? cardOf(card) : value));
  const another = kind === "choice" && memoryOf(text) !== null ? near(card).map(cardOf) : [];
  return [...listed, ...another];
}

/** Numbers that a reader may try next: one more, one less, twice and half. */
function near(text) {
  const size = Number(text);
  if (!Number.isInteger(size)) return [];
  return [size + 1, size - 1, 2 * size, Math.floor(size / 2)].filter((other) => other > 0).map(String);
}

/** A text as a boolean or number if it is one; otherwise the text itself. */
export function parsed(text) {
  if (text === "true" || text === "false") return text === "true";
  const number = /^-?\d+(\.\d+)?(e[-+]?\d+)?$/i.test(text) ? Number(text) : NaN;
  return Number.isFinite(number) ? number : text;
}

/** A config.json as an object. A text that is not JSON stays a text, and Python says what is wrong with it. */
export function parsedConfig(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
