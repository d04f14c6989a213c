// A setup as the form's texts: what applies to it, the request to Python that it makes, and what is one change away.
// Nothing here touches the document; form.mjs describes its controls as fields.

/**
 * @typedef {object} Field one control of the form
 * @property {string} name its name in the form, in addresses and in requests
 * @property {"choice" | "search" | "switch" | "number" | "config"} kind
 * @property {string} [usual] the calculator's own default as a text: a request leaves it out
 * @property {string} [placeholder] the number that an empty text asks for
 * @property {string} [label] what readers see beside it
 * @property {Iterable<{value: string, text: string}>} [options] what a list offers
 *
 * @typedef {Record<string, string>} Values field name -> text; an empty text asks for the model's own
 *
 * @typedef {object} Own what a model brings along, as calculator/page/models.py gives it
 * @property {Record<string, string>} placeholders
 * @property {boolean} [text_to_image]
 * @property {boolean} [two_stacks]
 * @property {boolean} [reversible]
 *
 * @typedef {(values: Values) => Own} OwnOf
 */

/** The list's choice of a card by its memory: the card's name, without the memory. */
export const ANOTHER_CARD = "cuda-gb";

export const cardOf = (memory) => `cuda-${memory}gb`;

/** The text in the place of the memory in a card's name, be it a number or not; null in other names. */
export const memoryOf = (gpu) => /^cuda-(.*)gb$/s.exec(gpu)?.[1] ?? null;

/** What cannot be combined with the rest and why, and what has no meaning beside it, by the fields' names. */
export function fitting(values, own) {
  const reversible = values.reversible === "" ? own.reversible : values.reversible === "true";
  const paged = values.optimizer.startsWith("paged");
  const offloaded = values.offload_optimizer === "true" && !paged;
  return {
    own,
    impossible: {
      model: values.config && "The pasted config.json is in use; take it away to choose a model.",
      checkpointing: own.text_to_image && reversible && "Reversible layers keep no activations: nothing is left to checkpoint.",
      sequence_length: own.text_to_image && "Fixed by the model's text length and image grid.",
      offload_optimizer: paged && "A paged optimizer moves its state to the host by itself.",
    },
    needless: {
      card: memoryOf(values.gpu) === null,
      target_length: !own.two_stacks,
      reversible: !own.text_to_image,
      optimizer_impl: values.optimizer !== "adamw",
      embeddings_32bit: !values.optimizer.includes("8bit"),
      delta_rule: !offloaded,
      pcie_generation: !offloaded,
    },
  };
}

/** Of the fields, those that apply to a setup. */
export function applicable(fields, { impossible, needless }) {
  return fields.filter(({ name }) => !impossible[name] && !needless[name]);
}

/** The request that texts describe: what applies and is not the calculator's own default. Python judges the rest. */
export function requestFor(fields, values, own) {
  const setup = {};
  for (const { name, usual } of applicable(fields, fitting(values, own))) {
    const text = values[name];
    if (name === "gpu" || text === "" || text === usual) continue;
    setup[name] = name === "config" ? parsedConfig(text) : parsed(text);
  }
  return { setup, gpu: values.gpu };
}

/** What differs from the page's first setup, as a query. */
export function queryFor(values, defaults) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) if (value !== defaults[name]) query.set(name, value);
  return query;
}

/** The texts that a query gives; names that are not the form's are dropped. */
export function valuesFrom(query, defaults) {
  return Object.fromEntries([...query].filter(([name]) => name in defaults));
}

/**
 * The requests that are one change away.
 *
 * Python answers them in this order: other values of the field that was changed last come first, since readers go on
 * turning what they have just turned, and other models come last, since they are many.
 *
 * @param {Field[]} fields
 * @param {Values} values
 * @param {{changed: string | undefined, card: string, ownOf: OwnOf}} now the name of the field that was changed last,
 *   and the memory in the field for another card, which is there even while the list names a card
 */
export function neighbours(fields, values, { changed, card, ownOf }) {
  const first = changed === "card" ? "gpu" : changed;
  const order = ({ name, kind }) => (name === first ? 0 : kind === "search" ? 2 : 1);
  return applicable(fields, fitting(values, ownOf(values)))
    .sort((one, other) => order(one) - order(other))
    .flatMap((field) => alternatives(field, values[field.name], card).map((text) => ({ ...values, [field.name]: text })))
    .map((next) => requestFor(fields, next, ownOf(next)));
}

/** The texts that a reader may set a field to next. */
export function alternatives({ kind, options, placeholder }, text, card) {
  if (kind === "switch") return [String(text !== "true")];
  if (kind === "number") return near(text || placeholder);
  if (kind !== "choice" && kind !== "search") return [];
  const listed = [...options].map(({ value }) => (value === ANOTHER_CARD ? cardOf(card) : value));
  const another = kind === "choice" && memoryOf(text) !== null ? near(card).map(cardOf) : [];
  return [...listed, ...another];
}

/** Numbers around a number. */
function near(text) {
  const size = Number(text);
  if (!Number.isInteger(size)) return [];
  return [size + 1, size - 1, 2 * size, Math.floor(size / 2)].filter((other) => other > 0).map(String);
}

/** A text as the value that JSON has for it, or the text itself. */
export function parsed(text) {
  if (text === "true" || text === "false") return text === "true";
  const number = /^-?\d+(\.\d+)?(e[-+]?\d+)?$/i.test(text) ? Number(text) : NaN;
  return Number.isFinite(number) ? number : text;
}

/** A config.json as an object; Python says what is wrong with a text that is no JSON. */
export function parsedConfig(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
