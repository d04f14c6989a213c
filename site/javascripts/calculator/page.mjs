// The calculator's page. The first answer stands in the HTML; Python is fetched when the reader shows interest in the
// form, or came by an address that names a setup. The address holds everything: each change is a step of the history.

import { setCommand } from "../listing.mjs";
import { makeCombobox } from "./combobox.mjs";
import { makeForm } from "./form.mjs";
import { keepForOffline } from "./offline.mjs";
import { makePins } from "./pins.mjs";
import { answerAhead, askPython, startedBy } from "./python.mjs";
import { makeShow } from "./show.mjs";
import { makeSweep } from "./sweep.mjs";

const STARTING = "Starting Python in your browser …";
const SAID_AFTER_MS = 150;
const SPOKEN_AFTER_MS = 600;
const AHEAD_AFTER_MS = 30;
const ADVISED_AFTER_MS = 300;
const MOST_SAID = 500;
const NOTED_WITHIN_MS = 100;

export function start(root) {
  const runtime = JSON.parse(root.dataset.runtime);
  const ended = new AbortController();
  const { slot, show, advise } = makeShow(root, ended.signal);
  const element = slot("form");
  const form = makeForm(element, JSON.parse(root.dataset.models));
  const ask = (request) => askPython(runtime, "answer", request);
  let answered = form.request();
  let asked = 0;
  let awake = false;
  let said = "";
  let speaking = null;
  let typing = null;
  let pauses = [];
  let noted = Promise.resolve();

  const pins = makePins(slot("pins"), {
    ask,
    query: form.query,
    requestOf: form.requestOf,
    names: form.names,
    refusal: form.inLabels,
    open,
    changed: () => (noted = noted.then(() => remember("push"))),
  });
  const sweep = makeSweep(slot("sweep"), {
    ask: (request) => askPython(runtime, "sweep", request),
    request: form.request,
    plotly: root.dataset.plotly,
  });

  function address(values = form.read(), pinned = pins.get()) {
    const query = form.query(values);
    for (const pin of pinned) query.append("pin", pin);
    const url = new URL(location.href);
    url.search = query.toString();
    url.hash = "";
    return url.href;
  }

  /** Puts the state into the address, as a new step of the history or in place of the present one. */
  function remember(how, url = address()) {
    if (url === location.href || ended.signal.aborted) return;
    if (how === "push") history.pushState(history.state, "", url);
    else history.replaceState(history.state, "", url);
  }

  /** What a volunteer may choose goes along to the join page; the rest is the run's own. */
  function tellJoin() {
    const { config, model, micro_batch_size, gpu } = form.read();
    const join = new URL(slot("join").href);
    const chosen = new URLSearchParams({ micro_batch_size });
    if (!config) chosen.set("model", model);
    if (gpu) chosen.set("gpu", gpu);
    join.search = chosen.toString();
    slot("join").href = join.href;
  }

  function readAddress() {
    const given = new URLSearchParams(location.search);
    form.write(form.fromQuery(given));
    pins.set(given.getAll("pin"));
  }

  async function compute(control = null, values = form.read()) {
    awake = true;
    form.showFitting(values);
    const mine = ++asked;
    const late = setTimeout(() => {
      root.dataset.state = "computing";
      say(startedBy() ? "" : STARTING);
    }, SAID_AFTER_MS);
    const request = form.request(values);
    let answer;
    try {
      answer = await ask(request);
    } catch (error) {
      answer = { failed: error.message };
    }
    clearTimeout(late);
    if (mine !== asked || ended.signal.aborted) return;
    root.dataset.python = startedBy();
    form.mark(answer.error);
    if (answer.failed) {
      root.dataset.state = "failed";
      say(`The browser's Python failed: ${answer.failed}. ${insteadOf(request)}`);
      return undefined;
    }
    if (answer.error) {
      root.dataset.state = "refused";
      say(form.inLabels(answer.error).slice(0, MOST_SAID));
      return undefined;
    }
    if (values.config) {
      form.usePasted(answer.own);
      // What a pasted model is shows which fields apply to it.
      if (JSON.stringify(form.request(values)) !== JSON.stringify(request)) return compute(control, values);
    }
    show(answer);
    answered = request;
    root.dataset.state = "shown";
    say("");
    sweep.update();
    afterwards(mine, request, control, answer.spoken);
  }

  /** What there is without Python: the command of what the form says. Returns how to go on, as a sentence. */
  function insteadOf(request) {
    const other = JSON.stringify(request) !== JSON.stringify(answered);
    if (other || root.hasAttribute("data-stale")) setCommand(slot("command"), form.command(request));
    tellJoin();
    root.toggleAttribute("data-stale", other);
    return `The command below answers anywhere${other ? ", for what the form says; the numbers are of another setup" : ""}.`;
  }

  /** In the live region: a sentence, and no total of a setup before. The same once more is not said again. */
  function say(sentence) {
    clearTimeout(speaking);
    if (sentence === said) return;
    said = sentence;
    slot("message").textContent = sentence;
    if (sentence) slot("spoken").textContent = "";
  }

  /**
   * While the reader looks at the answer: what may be asked next and, since it takes longer, what the reader could do.
   * A screen reader hears the total when the reader rests, not one for each key.
   */
  function afterwards(mine, request, control, spoken) {
    speaking = setTimeout(() => (slot("spoken").textContent = spoken), SPOKEN_AFTER_MS);
    pauses.forEach(clearTimeout);
    pauses = [
      setTimeout(() => {
        tellJoin();
        keepForOffline(runtime, [root.dataset.plotly]);
      }),
      setTimeout(() => answerAhead(form.neighbours(control)), AHEAD_AFTER_MS),
      setTimeout(async () => {
        const advice = await askPython(runtime, "advise", request).catch((error) => ({ error: error.message }));
        if (mine === asked && !ended.signal.aborted) advise(advice);
      }, ADVISED_AFTER_MS),
    ];
  }

  /** A change by the reader: a field that is typed into makes one step of the history, however long it lasts. */
  function changed(control) {
    const text = ["number", "part"].includes(control?.dataset.kind) || control?.name === "model";
    const how = text && typing === control ? "replace" : "push";
    typing = text ? control : null;
    const values = form.read();
    const pinned = pins.get();
    // The browser takes its time to note the step: an answer that comes soon is shown first.
    const soon = new Promise((resolve) => setTimeout(resolve, NOTED_WITHIN_MS));
    const told = Promise.race([compute(control, values), soon]);
    const rest = () => new Promise((resolve) => setTimeout(resolve));
    noted = noted.then(() => told).then(rest).then(() => remember(how, address(values, pinned)));
  }

  function open(query) {
    form.write(form.fromQuery(new URLSearchParams(query)));
    changed(null);
  }

  element.addEventListener("input", (event) => event.target.dataset.kind && changed(event.target));
  element.addEventListener("change", () => (typing = null));
  slot("choices").addEventListener("click", (event) => {
    const button = event.target.closest("[data-changes]");
    if (!button) return;
    form.write({ ...form.read(), ...JSON.parse(button.dataset.changes) });
    changed(null);
    // The button goes with its setup. A field in its place would bring a phone's keyboard up.
    slot("total").scrollIntoView({ block: "nearest" });
    slot("total").parentElement.focus({ preventScroll: true });
  });
  element.addEventListener("submit", (event) => event.preventDefault());
  element.addEventListener("reset", (event) => {
    event.preventDefault();
    open("");
  });
  makeCombobox(element.elements.model, () => address() !== location.href && changed(element.elements.model));
  addPaste();
  addButtons();

  for (const kind of ["pointerenter", "focusin", "touchstart"]) {
    element.addEventListener(kind, () => awake || compute(), { once: true, passive: true });
  }
  addEventListener(
    "popstate",
    () => {
      typing = null;
      readAddress();
      compute();
    },
    { signal: ended.signal },
  );

  function addPaste() {
    const text = slot("config-text");
    const use = async (value) => {
      const answer = await askPython(runtime, "read_config", { text: value }).catch((error) => ({ error: error.message }));
      slot("config-note").textContent = answer.error ?? "It is in use.";
      text.setAttribute("aria-invalid", Boolean(answer.error));
      if (answer.error) return text.focus(); // whose description it is
      element.elements.config.value = answer.config;
      form.usePasted(answer.own);
      changed(null);
    };
    slot("config-use").addEventListener("click", () => use(text.value));
    slot("config-used").addEventListener("click", () => {
      element.elements.config.value = "";
      text.value = "";
      slot("config-note").textContent = "";
      changed(null);
      element.elements.model.focus();
    });
  }

  function addButtons() {
    slot("share").addEventListener("click", async () => {
      const done = await navigator.clipboard.writeText(location.href).then(() => "Link copied", () => "The link is in the address bar");
      slot("share").textContent = done;
      setTimeout(() => (slot("share").textContent = "Copy a link to this"), 2000);
    });
    for (const kind of ["json", "csv"]) {
      slot(`save-${kind}`).addEventListener("click", async () => {
        const answer = await askPython(runtime, "export", form.request()).catch((error) => ({ error: error.message }));
        if (answer.error) say(answer.error);
        else save(`memory.${kind}`, answer[kind]);
      });
    }
  }

  if (location.search) {
    readAddress();
    if (form.query().size) {
      slot("total").textContent = "…";
      slot("saving").textContent = "";
      compute();
    }
  }
  form.showFitting();
  tellJoin();
  root.querySelectorAll("fieldset, button").forEach((part) => (part.disabled = false));
  sweep.update();
  return () => {
    ended.abort();
    sweep.stop();
  };
}

function save(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text]));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
