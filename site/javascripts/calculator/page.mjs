// The calculator's page. The first answer stands in the HTML; Python is fetched when the reader shows interest in the
// form, or came by an address that names a setup. The address holds everything: each change is a step of the history.
//
// At load       `start` makes the page's state, listens to the reader, and follows the address.
// At a change   `changed` asks Python (`compute`) and notes the change in the history.
// At an answer  `showAnswer` shows it; `afterwards` uses the time that the reader takes to look at it.

import { setCommand } from "../listing.mjs";
import { addressOf, goTo, joinAddress, partsOf } from "./address.mjs";
import { startPasting, startSaving, startSharing } from "./buttons.mjs";
import { makeCombobox } from "./combobox.mjs";
import { makeForm, readForm, showFitting, usePasted, writeForm } from "./form.mjs";
import { markRefused, namesOfQueries, neighboursOf, queryOf, refusalOf, requestOf, valuesOf } from "./form.mjs";
import { keepForOffline } from "./offline.mjs";
import { makePins, setPins } from "./pins.mjs";
import { answerAhead, askPython, startedBy } from "./python.mjs";
import { makeView, showAdvice, showTexts } from "./show.mjs";
import { makeSweep, stopSweep, updateSweep } from "./sweep.mjs";
import { commandOf } from "./words.mjs";

const STARTING = "Starting Python in your browser …";
const SAID_AFTER_MS = 150;
const SPOKEN_AFTER_MS = 600;
const AHEAD_AFTER_MS = 30;
const ADVISED_AFTER_MS = 300;
const MOST_SAID = 500;
const NOTED_WITHIN_MS = 100;

/**
 * @typedef {object} Page the page's state
 * @property {HTMLElement} root the calculator in the document
 * @property {object} runtime where the browser's Python is; see python.mjs
 * @property {AbortController} ended aborted when the theme has put another page in this one's place
 * @property {object} view the answer's places; see show.mjs
 * @property {Form} form see form.mjs
 * @property {object} pins the pinned setups; see pins.mjs
 * @property {object} sweep the chart over a range; see sweep.mjs
 * @property {object} answered the request that the numbers in sight belong to
 * @property {number} asked how often Python was asked: an answer counts only while nothing was asked after it
 * @property {boolean} awake whether Python was asked at all
 * @property {string} said what the live region says
 * @property {number} speaking timer of what the live region says when the reader rests
 * @property {HTMLElement | null} typing the control that is being typed into: all its changes are one step of the history
 * @property {number[]} pauses timers of what is done while the reader looks at an answer
 * @property {Promise} noted settled when the history has all changes until now: they are noted one after the other
 */

/** Starts the page; returns what stops it. */
export function start(root) {
  const page = makePage(root);
  listen(page);
  followAddress(page);
  showFitting(page.form);
  tellJoin(page);
  root.querySelectorAll("fieldset, button").forEach((part) => (part.disabled = false));
  updateSweep(page.sweep);
  return () => {
    page.ended.abort();
    stopSweep(page.sweep);
  };
}

/** @returns {Page} */
function makePage(root) {
  const ended = new AbortController();
  const view = makeView(root, ended.signal);
  const form = makeForm(view.slot("form"), JSON.parse(root.dataset.models));
  const page = {
    root,
    runtime: JSON.parse(root.dataset.runtime),
    ended,
    view,
    form,
    answered: requestOf(form),
    asked: 0,
    awake: false,
    said: "",
    speaking: 0,
    typing: null,
    pauses: [],
    noted: Promise.resolve(),
  };
  page.pins = makePins(view.slot("pins"), pinsPage(page));
  page.sweep = makeSweep(view.slot("sweep"), {
    ask: (request) => askPython(page.runtime, "sweep", request),
    request: () => requestOf(form),
    plotly: root.dataset.plotly,
  });
  return page;
}

/** What the pinned setups need of the page. */
function pinsPage(page) {
  const { form } = page;
  return {
    ask: (request) => askPython(page.runtime, "answer", request),
    query: () => queryOf(form),
    requestOf: (query) => requestOf(form, valuesOf(form, query)),
    names: (queries) => namesOfQueries(form, queries),
    refusal: (sentence) => refusalOf(form, sentence),
    open: (query) => open(page, query),
    changed: () => (page.noted = page.noted.then(() => remember(page, "push"))),
  };
}

/** Everything that the reader may do. */
function listen(page) {
  const { form, view } = page;
  listenToForm(page);
  makeCombobox(form.element.elements.model, () => presentAddress(page) !== location.href && changed(page, form.element.elements.model));
  view.slot("choices").addEventListener("click", (event) => takeAdvice(page, event));
  startPasting(view.slot, form, { askPython: (name, request) => askOrError(page, name, request), changed: () => changed(page) });
  startSharing(view.slot("share"));
  startSaving(view.slot, { askExport: () => askOrError(page, "export", requestOf(form)), say: (sentence) => say(page, sentence) });
  addEventListener("popstate", () => stepInHistory(page), { signal: page.ended.signal });
}

function listenToForm(page) {
  const { element } = page.form;
  element.addEventListener("input", ({ target }) => target.dataset.kind && changed(page, target));
  element.addEventListener("change", () => (page.typing = null));
  element.addEventListener("submit", (event) => event.preventDefault());
  element.addEventListener("reset", (event) => {
    event.preventDefault();
    open(page, "");
  });
  for (const kind of ["pointerenter", "focusin", "touchstart"]) {
    element.addEventListener(kind, () => page.awake || compute(page), { once: true, passive: true });
  }
}

/** At load: an address that names a setup is answered at once, and until then no total of another one is in sight. */
function followAddress(page) {
  if (!location.search) return;
  readAddress(page);
  if (!queryOf(page.form).size) return;
  page.view.slot("total").textContent = "…";
  page.view.slot("saving").textContent = "";
  compute(page);
}

function readAddress(page) {
  const { query, pinned } = partsOf(location.search);
  writeForm(page.form, valuesOf(page.form, query));
  setPins(page.pins, pinned);
}

/** The reader went back or forward: the address is there already. */
function stepInHistory(page) {
  page.typing = null;
  readAddress(page);
  compute(page);
}

/** Shows the setup of a query as if the reader had set it. */
function open(page, query) {
  writeForm(page.form, valuesOf(page.form, query));
  changed(page);
}

/** Sets what the pressed button of the advice proposes. */
function takeAdvice(page, event) {
  const button = event.target.closest("[data-changes]");
  if (!button) return;
  writeForm(page.form, { ...readForm(page.form), ...JSON.parse(button.dataset.changes) });
  changed(page);
  // The button goes with its setup. A field in its place would bring a phone's keyboard up.
  const total = page.view.slot("total");
  total.scrollIntoView({ block: "nearest" });
  total.parentElement.focus({ preventScroll: true });
}

/** A change by the reader: a field that is typed into makes one step of the history, however long it lasts. */
function changed(page, control = null) {
  const typed = isTyped(control);
  const how = typed && page.typing === control ? "replace" : "push";
  page.typing = typed ? control : null;
  const values = readForm(page.form);
  const pinned = page.pins.list;
  const url = () => addressOf(location.href, queryOf(page.form, values), pinned);
  // The browser takes its time to note a step: an answer that comes soon is shown first.
  const soon = new Promise((resolve) => setTimeout(resolve, NOTED_WITHIN_MS));
  const told = Promise.race([compute(page, control, values), soon]);
  const rest = () => new Promise((resolve) => setTimeout(resolve));
  page.noted = page.noted.then(() => told).then(rest).then(() => remember(page, how, url()));
}

const isTyped = (control) => ["number", "part"].includes(control?.dataset.kind) || control?.name === "model";

function presentAddress(page) {
  return addressOf(location.href, queryOf(page.form), page.pins.list);
}

function remember(page, how, url = presentAddress(page)) {
  if (!page.ended.signal.aborted) goTo(url, how);
}

/** The link to the join page goes along with the form. */
function tellJoin(page) {
  const link = page.view.slot("join");
  link.href = joinAddress(link.href, readForm(page.form));
}

/** Asks Python about the form's setup, and shows what it says unless something was asked meanwhile. */
async function compute(page, control = null, values = readForm(page.form)) {
  page.awake = true;
  showFitting(page.form, values);
  const mine = ++page.asked;
  const late = setTimeout(() => sayComputing(page), SAID_AFTER_MS);
  const request = requestOf(page.form, values);
  const answer = await answerTo(page, request);
  clearTimeout(late);
  if (!isNewest(page, mine)) return;
  page.root.dataset.python = startedBy();
  markRefused(page.form, answer.error);
  if (answer.failed) return showFailure(page, answer.failed, request);
  if (answer.error) return showRefusal(page, answer.error);
  if (values.config) {
    usePasted(page.form, answer.own);
    // What a pasted model is shows which fields apply to it.
    if (!isSame(requestOf(page.form, values), request)) return compute(page, control, values);
  }
  showAnswer(page, request, answer);
  afterwards(page, request, control, answer.spoken);
}

async function answerTo(page, request) {
  try {
    return await askPython(page.runtime, "answer", request);
  } catch (error) {
    return { failed: error.message };
  }
}

function askOrError(page, name, request) {
  return askPython(page.runtime, name, request).catch((error) => ({ error: error.message }));
}

const isNewest = (page, mine) => mine === page.asked && !page.ended.signal.aborted;

const isSame = (one, other) => JSON.stringify(one) === JSON.stringify(other);

function sayComputing(page) {
  page.root.dataset.state = "computing";
  say(page, startedBy() ? "" : STARTING);
}

function showAnswer(page, request, answer) {
  showTexts(page.view, answer);
  page.answered = request;
  page.root.dataset.state = "shown";
  say(page, "");
  updateSweep(page.sweep);
}

/** Python refuses the setup: its sentence stands there, and the numbers of the setup before. */
function showRefusal(page, error) {
  page.root.dataset.state = "refused";
  say(page, refusalOf(page.form, error).slice(0, MOST_SAID));
}

/** There is no Python: what remains is the command of what the form says. */
function showFailure(page, reason, request) {
  const other = !isSame(request, page.answered);
  page.root.dataset.state = "failed";
  if (other || page.root.hasAttribute("data-stale")) setCommand(page.view.slot("command"), commandOf(request));
  tellJoin(page);
  page.root.toggleAttribute("data-stale", other);
  const whose = other ? ", for what the form says; the numbers are of another setup" : "";
  say(page, `The browser's Python failed: ${reason}. The command below answers anywhere${whose}.`);
}

/** In the live region: a sentence, and no total of a setup before. The same once more is not said again. */
function say(page, sentence) {
  clearTimeout(page.speaking);
  if (sentence === page.said) return;
  page.said = sentence;
  page.view.slot("message").textContent = sentence;
  if (sentence) page.view.slot("spoken").textContent = "";
}

/**
 * While the reader looks at the answer: what may be asked next and, since it takes longer, what the reader could do.
 * A screen reader hears the total when the reader rests, not one for each key.
 */
function afterwards(page, request, control, spoken) {
  const mine = page.asked;
  page.speaking = setTimeout(() => (page.view.slot("spoken").textContent = spoken), SPOKEN_AFTER_MS);
  page.pauses.forEach(clearTimeout);
  page.pauses = [
    setTimeout(() => {
      tellJoin(page);
      keepForOffline(page.runtime, [page.root.dataset.plotly]);
    }),
    setTimeout(() => answerAhead(neighboursOf(page.form, control)), AHEAD_AFTER_MS),
    setTimeout(() => advise(page, mine, request), ADVISED_AFTER_MS),
  ];
}

/** Asks what the reader could do about a setup, and shows it while the setup is in sight. */
async function advise(page, mine, request) {
  const advice = await askOrError(page, "advise", request);
  if (isNewest(page, mine)) showAdvice(page.view, advice);
}
