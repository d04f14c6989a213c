// The form: controls as texts, texts as the address's query, and the setup that they describe.

/**
 * @param {HTMLFormElement} form
 * @param {Record<string, object>} models each model's own values, as site/builder/answers/models.py gives them
 */
export function makeForm(form, models) {
  const controls = [...form.querySelectorAll("[data-kind]")];
  const defaults = read();
  let pasted = null;

  /** Every control's value as text; an empty text asks for the model's own. */
  function read() {
    return Object.fromEntries(
      controls.map((control) => [control.name, control.dataset.kind === "switch" ? String(control.checked) : control.value.trim()]),
    );
  }

  function write(values, { unfold = true } = {}) {
    for (const control of controls) {
      const value = values[control.name] ?? defaults[control.name];
      if (control.dataset.kind === "switch") control.checked = value === "true";
      else if (control.tagName === "SELECT" && ![...control.options].some((option) => option.value === value)) {
        control.add(new Option(`${value.slice(0, 40)} (unknown)`, value));
        control.value = value;
      } else control.value = value;
    }
    const changed = read();
    for (const folded of form.querySelectorAll("details[data-fold]")) {
      if (unfold && controls.some((control) => folded.contains(control) && changed[control.name] !== defaults[control.name])) folded.open = true;
    }
    showFitting();
  }

  /** What differs from the page's first setup, as a query. */
  function query() {
    const differing = new URLSearchParams();
    for (const [name, value] of Object.entries(read())) if (value !== defaults[name]) differing.set(name, value);
    return differing;
  }

  /** The controls' texts that a query gives; other names are not ours. */
  function fromQuery(given) {
    return Object.fromEntries([...given].filter(([name]) => name in defaults));
  }

  /** The request that texts describe: what applies, numbers where a number stands, the rest for Python to judge. */
  function request(values = read()) {
    const setup = {};
    for (const control of controls) {
      const text = values[control.name];
      if (text === "" || control.name === "gpu" || !isOn(control)) continue;
      setup[control.name] = control.name === "config" ? parsedConfig(text) : parsed(text);
    }
    if ("config" in setup) delete setup.model;
    return { setup, gpu: values.gpu ?? null };
  }

  /** The requests that are one change away: the other options, and sizes near the present ones. */
  function neighbours() {
    const values = read();
    return controls.filter(isOn).flatMap((control) =>
      alternatives(control).map((value) => request({ ...values, [control.name]: value })),
    );
  }

  function isOn(control) {
    return !control.disabled && !control.closest("[data-field]").hidden;
  }

  /** The same for a query that is not in the form. */
  function requestOf(given) {
    const before = read();
    write(fromQuery(given), { unfold: false });
    const asked = request();
    write(before, { unfold: false });
    return asked;
  }

  function own() {
    if (form.elements.config.value) return pasted ?? { placeholders: {} };
    return models[form.elements.model.value] ?? { placeholders: {} };
  }

  /** Tells what a pasted model brings along. */
  function usePasted(values) {
    if (!form.elements.config.value) return;
    pasted = values;
    showFitting();
  }

  /** Shows what applies to the model; what cannot be combined is blocked, and its note says why. */
  function showFitting() {
    const values = own();
    const elements = form.elements;
    const optimizer = elements.optimizer.value;
    const reversible = elements.reversible.value === "" ? values.reversible : elements.reversible.value === "true";
    for (const [key, text] of Object.entries(values.placeholders)) elements[key].placeholder = text;
    const impossible = {
      model: elements.config.value && "The pasted config.json is in use; take it away to choose a model.",
      checkpointing: values.text_to_image && reversible && "Reversible layers keep no activations: nothing is left to checkpoint.",
      sequence_length: values.text_to_image && "Fixed by the model's text length and image grid.",
      offload_optimizer: optimizer.startsWith("paged") && "A paged optimizer moves its state to the host by itself.",
    };
    for (const [key, reason] of Object.entries(impossible)) {
      elements[key].disabled = Boolean(reason);
      const note = form.querySelector(`#note-${key}`);
      note.dataset.usual ??= note.textContent;
      note.textContent = reason || note.dataset.usual;
    }
    const offloaded = elements.offload_optimizer.checked && !elements.offload_optimizer.disabled;
    const needless = {
      target_length: !values.two_stacks,
      reversible: !values.text_to_image,
      optimizer_impl: optimizer !== "adamw",
      embeddings_32bit: !optimizer.includes("8bit"),
      delta_rule: !offloaded,
      pcie_generation: !offloaded,
    };
    for (const [key, hidden] of Object.entries(needless)) form.querySelector(`[data-field="${key}"]`).hidden = hidden;
    form.querySelector('[data-slot="config-used"]').hidden = !elements.config.value;
  }

  /** Marks the controls that a refusal names. */
  function mark(sentence) {
    for (const control of controls) {
      if (sentence && new RegExp(`\\b${control.name}\\b`).test(sentence)) control.setAttribute("aria-invalid", "true");
      else control.removeAttribute("aria-invalid");
    }
  }

  return { defaults, read, write, query, fromQuery, request, neighbours, requestOf, showFitting, usePasted, mark };
}

function alternatives(control) {
  if (control.dataset.kind === "switch") return [String(!control.checked)];
  if (control.dataset.kind === "choice") return [...control.options].map((option) => option.value);
  const size = Number(control.value || control.placeholder);
  if (control.dataset.kind !== "number" || !Number.isInteger(size)) return [];
  return [size + 1, size - 1, 2 * size, Math.floor(size / 2)].filter((near) => near > 0).map(String);
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
