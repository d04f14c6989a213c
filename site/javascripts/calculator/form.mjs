// The form: controls as texts, texts as the address's query, and the setup that they describe.

/** A setup's name begins with these. */
const IN_NAME = ["model", "config", "micro_batch_size"];
const LONGEST_WORD = 40;

/** The list's choice of a card by its memory: the card's name, without the memory. */
const ANOTHER_CARD = "cuda-gb";

/**
 * @param {HTMLFormElement} form
 * @param {Record<string, object>} models each model's own values, as calculator/page/models.py gives them
 */
export function makeForm(form, models) {
  const controls = [...form.querySelectorAll("[data-kind]:not([data-kind=part])")];
  const { gpu, card } = form.elements;
  const defaults = read();
  const configUsed = form.querySelector('[data-slot="config-used"]');
  let pasted = null;
  let marked = [];
  let shown = { own: { placeholders: {} }, impossible: {}, needless: {} };

  /** Every control's value as text; an empty text asks for the model's own. */
  function read() {
    return Object.fromEntries(controls.map((control) => [control.name, textOf(control)]));
  }

  function textOf(control) {
    if (control.dataset.kind === "switch") return String(control.checked);
    const text = control.value.trim();
    return control === gpu && text === ANOTHER_CARD ? cardOf(card.value.trim()) : text;
  }

  function write(values) {
    for (const control of controls) {
      const value = values[control.name] ?? defaults[control.name];
      const memory = control === gpu ? memoryOf(value) : null;
      if (control.dataset.kind === "switch") control.checked = value === "true";
      else if (memory !== null) [control.value, card.value] = [ANOTHER_CARD, memory];
      else if (control.tagName === "SELECT" && ![...control.options].some((option) => option.value === value)) {
        control.add(new Option(`${value.slice(0, 40)} (unknown)`, value));
        control.value = value;
      } else control.value = value;
    }
    const changed = read();
    for (const folded of form.querySelectorAll("details[data-fold]")) {
      if (controls.some((control) => folded.contains(control) && changed[control.name] !== defaults[control.name])) folded.open = true;
    }
    showFitting();
  }

  /** What differs from the page's first setup, as a query. */
  function query(values = read()) {
    const differing = new URLSearchParams();
    for (const [name, value] of Object.entries(values)) if (value !== defaults[name]) differing.set(name, value);
    return differing;
  }

  /** The controls' texts that a query gives; other names are not ours. */
  function fromQuery(given) {
    return Object.fromEntries([...given].filter(([name]) => name in defaults));
  }

  /** The request that texts describe: what applies and is not the calculator's own default; Python judges the rest. */
  function request(values = read()) {
    const { impossible, needless } = fitting(values);
    const setup = {};
    for (const { name, dataset } of controls) {
      const text = values[name];
      if (name === "gpu" || text === "" || text === dataset.usual || impossible[name] || needless[name]) continue;
      setup[name] = name === "config" ? parsedConfig(text) : parsed(text);
    }
    return { setup, gpu: values.gpu ?? null };
  }

  /** The requests that are one change away, the last changed control's first and other models last. */
  function neighbours(changed) {
    const values = read();
    const { impossible, needless } = fitting(values);
    const first = changed === card ? gpu : changed;
    const order = (control) => (control === first ? 0 : control.dataset.kind === "search" ? 2 : 1);
    return controls
      .filter(({ name }) => !impossible[name] && !needless[name])
      .sort((one, other) => order(one) - order(other))
      .flatMap((control) => alternatives(control, card).map((value) => request({ ...values, [control.name]: value })));
  }

  /** The same for a query that is not in the form. */
  function requestOf(given) {
    return request({ ...defaults, ...fromQuery(given) });
  }

  /** Short names of queries, {model, others}: model and batch, then where one is not as the first setup or as another. */
  function names(queries) {
    const all = queries.map((given) => ({ ...defaults, ...fromQuery(new URLSearchParams(given)) }));
    return all.map((values) => {
      const { impossible, needless } = fitting(values);
      const differs = ({ name }) => all.some((other) => other[name] !== values[name]) || values[name] !== defaults[name];
      const told = controls.filter((control) => !IN_NAME.includes(control.name) && differs(control));
      const others = told.filter(({ name }) => !impossible[name] && !needless[name]).map((control) => inWords(control, values[control.name]));
      const model = values.config ? nameOfConfig(values.config) : values.model.slice(0, LONGEST_WORD);
      const batch = (values.micro_batch_size || "1").slice(0, LONGEST_WORD);
      return { model: `${model}, batch ${batch}`, others: others.filter(Boolean) };
    });
  }

  /** Tells what a pasted model brings along. */
  function usePasted(values) {
    if (!form.elements.config.value) return;
    pasted = values;
    showFitting();
  }

  /** What a model brings along, what cannot be combined with the rest and why, and what has no meaning beside it. */
  function fitting(values) {
    const own = (values.config ? pasted : models[values.model]) ?? { placeholders: {} };
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

  /**
   * Shows what applies to the model; what cannot be combined is blocked, and its note says why. Only what differs from
   * what is shown is looked up.
   */
  function showFitting(values = read()) {
    const { elements } = form;
    const next = fitting(values);
    for (const [key, text] of differing(next.own.placeholders, shown.own.placeholders)) elements[key].placeholder = text;
    for (const [key, reason] of differing(next.impossible, shown.impossible)) {
      elements[key].disabled = Boolean(reason);
      const note = form.querySelector(`#note-${key}`);
      note.dataset.usual ??= note.textContent;
      note.textContent = reason || note.dataset.usual;
    }
    for (const [key, hidden] of differing(next.needless, shown.needless)) {
      form.querySelector(`[data-field="${key}"]`).hidden = hidden;
    }
    configUsed.hidden = !values.config;
    shown = next;
  }

  /** A refusal as a reader knows its names: a control's label stands for the key, which the command line and files have. */
  function inLabels(sentence) {
    const memory = `“${card.labels[0].textContent}” is`;
    const ofCard = sentence.replace(/^gpu is cuda-Ngb, where N is/, memory).replace(/'cuda-(.*)gb'/, "'$1'");
    const said = controls.reduce((words, { name, labels }) => {
      if (!labels?.length) return words;
      const key = new RegExp(name.includes("_") ? `\\b${name}\\b` : `^${name}(?= is )`, "g");
      return words.replace(key, `“${labels[0].textContent}”`);
    }, ofCard);
    // What a list offers stands in the list.
    return said.replace(/\bis null\b/, "is empty").replace(/ is one of .*, not /, " is one of those in its list, not ");
  }

  /** Marks the controls that a refusal names; of a card by its memory, the memory. */
  function mark(sentence) {
    for (const control of marked) control.removeAttribute("aria-invalid");
    const named = ({ name }) => sentence && new RegExp(`\\b${name}\\b`).test(sentence);
    marked = controls.filter(named).map((control) => (control === gpu && gpu.value === ANOTHER_CARD ? card : control));
    for (const control of marked) control.setAttribute("aria-invalid", "true");
  }

  return { defaults, read, write, query, fromQuery, request, command, neighbours, requestOf, names, showFitting, usePasted, mark, inLabels };
}

/**
 * The command of a request that Python could not be asked: its keys are the command line's flags. Texts from an address
 * stand there as they came, in quotes where a shell would read more than a word.
 */
function command({ setup, gpu }) {
  const { model, config, ...others } = setup;
  const flags = Object.entries({ ...others, ...(gpu ? { gpu } : {}) }).map(([key, value]) => {
    const flag = key.replaceAll("_", "-");
    return value === true ? `--${flag}` : value === false ? `--no-${flag}` : `--${flag} ${quoted(value)}`;
  });
  const line = ["python -m calculator", config ? "--config /dev/stdin" : quoted(model), ...flags].join(" ");
  return config ? `echo ${quoted(JSON.stringify(config))} | ${line}` : line;
}

const quoted = (value) => (/^[\w.-]+$/.test(value) ? String(value) : `'${String(value).replaceAll("'", `'"'"'`)}'`);

const cardOf = (memory) => `cuda-${memory}gb`;

/** What stands for the memory in a card's name, whatever it is; null in other names. */
const memoryOf = (gpu) => /^cuda-(.*)gb$/s.exec(gpu)?.[1] ?? null;

/** A control's value as a part of a name; a switch that is off and a number that is the model's own are not told. */
function inWords({ dataset, labels, options }, value) {
  const label = labels[0].textContent;
  if (dataset.kind === "switch") return value === "true" ? label : "";
  const memory = dataset.kind === "choice" ? memoryOf(value) : null;
  if (memory !== null) return `CUDA card, ${memory.slice(0, LONGEST_WORD)} GB`;
  if (dataset.kind === "number") return value && `${label}: ${value.slice(0, LONGEST_WORD)}`;
  const chosen = [...options].find((option) => option.value === value);
  const text = chosen ? chosen.text.split(": ")[0] : value.slice(0, LONGEST_WORD);
  // "AdamW, 8-bit" says what it is, "off" does not.
  return /^[A-Z]/.test(text) ? text : `${label}: ${text}`;
}

/** A pasted model by its family and size. */
function nameOfConfig(text) {
  const config = parsedConfig(text);
  const width = config?.n_embd ?? config?.d_model ?? config?.hidden_size;
  const layers = config?.n_layer ?? config?.num_layers ?? config?.num_hidden_layers;
  const known = [config?.model_type ?? "config.json", width && `${width} wide`, layers && `${layers} layers`];
  return `pasted ${known.filter(Boolean).map((word) => String(word).slice(0, LONGEST_WORD)).join(", ")}`;
}

/** What a reader may set a control to next. */
function alternatives(control, card) {
  const { kind } = control.dataset;
  if (kind === "switch") return [String(!control.checked)];
  if (kind === "choice") {
    const another = control.value === ANOTHER_CARD ? near(card).map(cardOf) : [];
    return [...[...control.options].map(({ value }) => (value === ANOTHER_CARD ? cardOf(card.value.trim()) : value)), ...another];
  }
  if (kind === "search") return [...document.getElementById(control.getAttribute("aria-controls")).querySelectorAll("[data-value]")].map((option) => option.dataset.value);
  return kind === "number" ? near(control) : [];
}

/** Numbers around the one in a field. */
function near(field) {
  const size = Number(field.value || field.placeholder);
  if (!Number.isInteger(size)) return [];
  return [size + 1, size - 1, 2 * size, Math.floor(size / 2)].filter((other) => other > 0).map(String);
}

function differing(now, before) {
  return Object.entries(now).filter(([key, value]) => value !== before[key]);
}

function parsed(text) {
  if (text === "true" || text === "false") return text === "true";
  const number = /^-?\d+(\.\d+)?(e[-+]?\d+)?$/i.test(text) ? Number(text) : NaN;
  return Number.isFinite(number) ? number : text;
}

function parsedConfig(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
