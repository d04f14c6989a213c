// The calculator's form. The first answer stands in the HTML; the browser's Python is fetched when the reader shows
// interest in the form, or came by a link to a setup.

let worker = null;
let lastId = 0;

/** One worker for the whole visit: it outlives the pages that the theme swaps. */
function ask(runtime, setup, onAnswer) {
  worker ??= new Worker(new URL("calculator-worker.mjs", import.meta.url), { type: "module", name: runtime });
  const id = ++lastId;
  worker.onmessage = ({ data }) => data.id === lastId && onAnswer(data);
  worker.onerror = () => {
    worker = null;
    onAnswer({ failed: "Python did not start" });
  };
  worker.postMessage({ id, setup: JSON.stringify(setup) });
}

export function start(root) {
  const slot = (name) => root.querySelector(`[data-slot="${name}"]`);
  const runtime = new URL(root.dataset.runtime, document.baseURI).href;
  const models = JSON.parse(root.dataset.models);
  const form = slot("form");
  const controls = [...form.querySelectorAll("[data-kind]")];
  const defaults = readForm();

  form.querySelectorAll("fieldset, button").forEach((part) => (part.disabled = false));

  /** Every control's value as text, as it stands in the URL; an empty text asks for the model's own. */
  function readForm() {
    return Object.fromEntries(
      controls.map((control) => [control.name, control.dataset.kind === "switch" ? String(control.checked) : control.value.trim()]),
    );
  }

  function writeForm(values) {
    for (const control of controls) {
      const value = values[control.name] ?? defaults[control.name];
      if (control.dataset.kind === "switch") control.checked = value === "true";
      else if (control.tagName === "SELECT" && ![...control.options].some((option) => option.value === value)) {
        control.add(new Option(`${value.slice(0, 40)} (unknown)`, value));
        control.value = value;
      } else control.value = value;
    }
    if (controls.some((control) => control.closest("details") && readForm()[control.name] !== defaults[control.name])) {
      slot("more").open = true;
    }
  }

  /** The setup for the calculator: what applies, numbers where a number stands, everything else for it to judge. */
  function setup() {
    const values = {};
    for (const control of controls) {
      if (control.disabled || control.closest("[data-field]").hidden) continue;
      const text = readForm()[control.name];
      if (text === "") continue;
      values[control.name] = parsed(text);
    }
    return values;
  }

  /** Shows what applies to the model; what cannot be combined is blocked, and its note says why. */
  function showFitting() {
    const own = models[form.elements.model.value] ?? { placeholders: {} };
    const optimizer = form.elements.optimizer.value;
    const reversible = form.elements.reversible.value === "" ? own.reversible : form.elements.reversible.value === "true";
    for (const [key, value] of Object.entries(own.placeholders)) form.elements[key].placeholder = value;
    const impossible = {
      checkpointing: own.text_to_image && reversible && "Reversible layers keep no activations: nothing is left to checkpoint.",
      sequence_length: own.text_to_image && "Fixed by the model's text length and image grid.",
      offload_optimizer: optimizer.startsWith("paged") && "A paged optimizer moves its state to the host by itself.",
    };
    for (const [key, reason] of Object.entries(impossible)) {
      form.elements[key].disabled = Boolean(reason);
      const note = form.querySelector(`#note-${key}`);
      note.dataset.usual ??= note.textContent;
      note.textContent = reason || note.dataset.usual;
    }
    const offloaded = form.elements.offload_optimizer.checked && !form.elements.offload_optimizer.disabled;
    const needless = {
      target_length: !own.two_stacks,
      reversible: !own.text_to_image,
      optimizer_impl: optimizer !== "adamw",
      embeddings_32bit: !optimizer.includes("8bit"),
      delta_rule: !offloaded,
      pcie_generation: !offloaded,
    };
    for (const [key, hidden] of Object.entries(needless)) form.querySelector(`[data-field="${key}"]`).hidden = hidden;
  }

  function address() {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(readForm())) if (value !== defaults[name]) query.set(name, value);
    const url = new URL(location.href);
    url.search = query.toString();
    url.hash = "";
    return url.href;
  }

  function compute() {
    showFitting();
    history.replaceState(history.state, "", address());
    slot("link").href = address();
    let waiting = setTimeout(() => {
      root.dataset.state = "computing";
      slot("message").textContent = worker && lastId > 1 ? "" : "Starting Python in your browser …";
    }, 150);
    ask(runtime, setup(), (data) => {
      clearTimeout(waiting);
      if (data.failed) {
        root.dataset.state = "refused";
        slot("message").textContent = `The browser's Python failed (${data.failed}). The command below answers anywhere.`;
        return;
      }
      show(JSON.parse(data.answer));
    });
  }

  function show(shown) {
    for (const control of controls) control.removeAttribute("aria-invalid");
    if (shown.error) {
      root.dataset.state = "refused";
      slot("message").textContent = shown.error;
      const named = controls.filter((control) => shown.error.includes(control.name));
      for (const control of named) control.setAttribute("aria-invalid", "true");
      return;
    }
    root.dataset.state = "shown";
    slot("total").textContent = shown.total;
    slot("saving").textContent = shown.saving;
    const spoken = document.createElement("span");
    spoken.className = "visually-hidden";
    spoken.textContent = shown.spoken;
    slot("message").replaceChildren("Computed in your browser. ", spoken);
    slot("gpu-total").textContent = shown.total;
    slot("host-total").textContent = shown.host_total;
    for (const name of ["peak", "transfer", "facts", "command"]) slot(name).textContent = shown[name];
    slot("gpu").replaceChildren(...shown.gpu.map((row) => tableRow(row, [row.bytes, row.share])));
    slot("host").replaceChildren(...shown.host.map((row) => tableRow(row, [row.bytes])));
    slot("timeline").replaceChildren(...shown.timeline.map(instantRow));
    slot("bars").ariaLabel = shown.bars_label;
    slot("bars").replaceChildren(...shown.bars.flatMap(bar));
  }

  let awake = false;
  function wake() {
    if (awake) return;
    awake = true;
    compute();
  }
  const interest = ["pointerenter", "focusin", "touchstart"];
  for (const kind of interest) form.addEventListener(kind, wake, { once: true, passive: true });
  form.addEventListener("input", () => {
    awake = true;
    compute();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    writeForm(defaults);
    compute();
  });

  const asked = Object.fromEntries([...new URLSearchParams(location.search)].filter(([name]) => name in defaults));
  if (Object.keys(asked).length) {
    writeForm(asked);
    slot("total").textContent = "…";
    slot("saving").textContent = "";
    wake();
  } else showFitting();
}

function parsed(text) {
  if (text === "true" || text === "false") return text === "true";
  const number = /^-?\d+(\.\d+)?(e-?\d+)?$/i.test(text) ? Number(text) : NaN;
  return Number.isFinite(number) ? number : text;
}

function tableRow(row, cells) {
  const line = document.createElement("tr");
  const head = document.createElement("th");
  head.scope = "row";
  if (row.series) head.append(swatch(row.series));
  head.append(row.label);
  line.append(head);
  for (const text of cells) line.insertCell().textContent = text;
  return line;
}

function instantRow(row) {
  const line = document.createElement("tr");
  line.dataset.peak = row.peak;
  for (const text of [row.phase, row.peak ? `${row.place} (the peak)` : row.place, row.bytes]) line.insertCell().textContent = text;
  const held = document.createElement("span");
  held.className = "held";
  held.style.setProperty("--held", `${row.percent}%`);
  line.insertCell().append(held);
  return line;
}

function swatch(series) {
  const mark = document.createElement("span");
  mark.className = "swatch";
  mark.style.setProperty("--swatch", `var(--series-${series})`);
  return mark;
}

function bar(one, index) {
  const label = document.createElement("span");
  label.textContent = one.label;
  const box = document.createElement("div");
  box.className = index ? "bar bar--plain" : "bar";
  for (const part of one.parts) {
    const piece = document.createElement("span");
    piece.style.setProperty("--swatch", `var(--series-${part.series})`);
    piece.style.flex = `0 0 ${part.percent}%`;
    box.append(piece);
  }
  const total = document.createElement("span");
  total.textContent = one.total;
  return [label, box, total];
}
