// A setup in words: its short name, its command line, and Python's refusal with the page's labels.

import { applicable, fitting, memoryOf, parsedConfig } from "./setup.mjs";

/** Every name contains these fields, so they are not repeated among the differences. */
const IN_NAME = ["model", "config", "micro_batch_size"];
const LONGEST_WORD = 40;

const short = (text) => String(text).slice(0, LONGEST_WORD);

/**
 * Short names of setups, {model, others}: model and batch, then the fields in which the setup differs from the defaults
 * or from another of the setups. The types are those of setup.mjs.
 *
 * @param {Field[]} fields
 * @param {Values[]} setups
 * @param {Values} defaults
 * @param {OwnOf} ownOf
 */
export function namesOf(fields, setups, defaults, ownOf) {
  return setups.map((values) => {
    const compared = [defaults, ...setups];
    const differing = ({ name }) => !IN_NAME.includes(name) && compared.some((other) => other[name] !== values[name]);
    const told = applicable(fields, fitting(values, ownOf(values))).filter(differing);
    return { model: modelAndBatch(values), others: told.map((field) => inWords(field, values[field.name])).filter(Boolean) };
  });
}

function modelAndBatch({ config, model, micro_batch_size }) {
  return `${config ? nameOfConfig(config) : short(model)}, batch ${short(micro_batch_size || "1")}`;
}

/** A field's value in words; empty for a switch that is off, and for a number that is the model's own. */
export function inWords({ kind, label, options }, value) {
  if (kind === "switch") return value === "true" ? label : "";
  if (kind === "number") return value && `${label}: ${short(value)}`;
  const memory = kind === "choice" ? memoryOf(value) : null;
  if (memory !== null) return `CUDA card, ${short(memory)} GB`;
  const chosen = [...options].find((option) => option.value === value);
  const text = chosen ? chosen.text.split(": ")[0] : short(value);
  // "AdamW, 8-bit" needs no label; "off" does.
  return /^[A-Z]/.test(text) ? text : `${label}: ${text}`;
}

/** A short name for a pasted model: family and size. Families use different keys for the same size. */
export function nameOfConfig(text) {
  const config = parsedConfig(text);
  const width = config?.n_embd ?? config?.d_model ?? config?.hidden_size;
  const layers = config?.n_layer ?? config?.num_layers ?? config?.num_hidden_layers;
  const known = [config?.model_type ?? "config.json", width && `${width} wide`, layers && `${layers} layers`];
  return `pasted ${known.filter(Boolean).map(short).join(", ")}`;
}

/**
 * The command line for a request that the browser's Python cannot answer; its flags are the request's keys. Texts may
 * come from an address that a stranger made, so they are quoted unless a shell reads them as one word.
 */
export function commandOf({ setup, gpu }) {
  const { model, config, ...others } = setup;
  const flags = Object.entries({ ...others, ...(gpu ? { gpu } : {}) }).map(([key, value]) => flag(key.replaceAll("_", "-"), value));
  const line = ["python -m calculator", config ? "--config /dev/stdin" : quoted(model), ...flags].join(" ");
  return config ? `echo ${quoted(JSON.stringify(config))} | ${line}` : line;
}

function flag(name, value) {
  if (value === true) return `--${name}`;
  return value === false ? `--no-${name}` : `--${name} ${quoted(value)}`;
}

const quoted = (value) => (/^[\w.-]+$/.test(value) ? String(value) : `'${String(value).replaceAll("'", `'"'"'`)}'`);

/**
 * A refusal with each field's label in place of its key, because the page shows labels only.
 *
 * @param {string} sentence Python's refusal
 * @param {Field[]} fields
 * @param {string} cardLabel label of the field for a card's memory
 */
export function inLabels(sentence, fields, cardLabel) {
  const ofCard = sentence.replace(/^gpu is cuda-Ngb, where N is/, `“${cardLabel}” is`).replace(/'cuda-(.*)gb'/, "'$1'");
  const said = fields.reduce((words, { name, label }) => (label ? words.replace(keyIn(name), `“${label}”`) : words), ofCard);
  // The reader sees the options in the list; the message need not repeat them.
  return said.replace(/\bis null\b/, "is empty").replace(/ is one of .*, not /, " is one of those in its list, not ");
}

/** Matches a key. A key such as "model" is also an English word, so it counts only as the subject of the sentence. */
function keyIn(name) {
  return new RegExp(name.includes("_") ? `\\b${name}\\b` : `^${name}(?= is )`, "g");
}

/** Whether a refusal names a field. */
export function isNamed(name, sentence) {
  return Boolean(sentence) && new RegExp(`\\b${name}\\b`).test(sentence);
}
