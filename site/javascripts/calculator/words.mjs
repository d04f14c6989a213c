// A setup in words: its short name, the command that answers it, and a refusal with the labels that readers know.

import { applicable, fitting, memoryOf, parsedConfig } from "./setup.mjs";

/** A setup's name begins with these. */
const IN_NAME = ["model", "config", "micro_batch_size"];
const LONGEST_WORD = 40;

const short = (text) => String(text).slice(0, LONGEST_WORD);

/**
 * Short names of setups, {model, others}: model and batch, then the fields in which the setup differs from the page's
 * first one or from another of these.
 *
 * @param {Field[]} fields as setup.mjs has them, and so are the rest
 * @param {Values[]} setups
 * @param {Values} defaults of the page's first setup
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

/** A field's value as a part of a name; empty for a switch that is off and a number that is the model's own. */
export function inWords({ kind, label, options }, value) {
  if (kind === "switch") return value === "true" ? label : "";
  if (kind === "number") return value && `${label}: ${short(value)}`;
  const memory = kind === "choice" ? memoryOf(value) : null;
  if (memory !== null) return `CUDA card, ${short(memory)} GB`;
  const chosen = [...options].find((option) => option.value === value);
  const text = chosen ? chosen.text.split(": ")[0] : short(value);
  // "AdamW, 8-bit" says what it is, "off" does not.
  return /^[A-Z]/.test(text) ? text : `${label}: ${text}`;
}

/** A pasted model by its family and size, whose keys each family names in its own way. */
export function nameOfConfig(text) {
  const config = parsedConfig(text);
  const width = config?.n_embd ?? config?.d_model ?? config?.hidden_size;
  const layers = config?.n_layer ?? config?.num_layers ?? config?.num_hidden_layers;
  const known = [config?.model_type ?? "config.json", width && `${width} wide`, layers && `${layers} layers`];
  return `pasted ${known.filter(Boolean).map(short).join(", ")}`;
}

/**
 * The command of a request that Python could not be asked: its keys are the command line's flags. Texts from an address
 * stand there as they came, in quotes where a shell would read more than a word.
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
 * A refusal with each field's label in the place of its key, which only the command line and files have.
 *
 * @param {string} sentence as Python says it
 * @param {Field[]} fields
 * @param {string} cardLabel the label of the memory of a card that the list does not name
 */
export function inLabels(sentence, fields, cardLabel) {
  const ofCard = sentence.replace(/^gpu is cuda-Ngb, where N is/, `“${cardLabel}” is`).replace(/'cuda-(.*)gb'/, "'$1'");
  const said = fields.reduce((words, { name, label }) => (label ? words.replace(keyIn(name), `“${label}”`) : words), ofCard);
  // What a list offers stands in the list.
  return said.replace(/\bis null\b/, "is empty").replace(/ is one of .*, not /, " is one of those in its list, not ");
}

/** A key of one word, such as "model", is also a word of the language: it is the key only as the sentence's subject. */
function keyIn(name) {
  return new RegExp(name.includes("_") ? `\\b${name}\\b` : `^${name}(?= is )`, "g");
}

/** Whether a refusal is about a field. */
export function isNamed(name, sentence) {
  return Boolean(sentence) && new RegExp(`\\b${name}\\b`).test(sentence);
}
