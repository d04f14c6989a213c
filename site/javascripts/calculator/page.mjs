// The calculator's page. The HTML already contains the first answer. Python is fetched when the reader first touches
// the form, or at load if the address names a setup. The address holds the whole state; each change adds a history
// entry.
//
// At load       `start` creates the page's state, adds the event listeners and reads the address.
// At a change   `changed` asks Python (`compute`) and adds the change to the history.
// At an answer  `showAnswer` shows it; `afterwards` schedules work for the time in which the reader looks at it.

import { setCommand } from "../parts/listing.mjs";
import { addressOf, goTo, isEmbedded, joinAddress, partsOf } from "./address.mjs";
import { startPasting, startSaving, startSharing } from "./buttons.mjs";
import { makeCombobox } from "./combobox.mjs";
import { makeForm, readForm, showFitting, usePasted, writeForm } from "./form.mjs";
import { keepInSight, keepWithinLimits, mark, markRefused, namesOfQueries, neighboursOf } from "./form.mjs";
import { queryOf, refusalOf, requestOf, valuesOf } from "./form.mjs";
import { keepForOffline } from "../python/offline.mjs";
import { makePins, setPins } from "./answer/pins.mjs";
import { answerAhead, askPython, startedBy } from "../python/python.mjs";
import { startSearching } from "./search.mjs";
import { makeView, showAdvice, showTexts } from "./answer/show.mjs";
import { makeSweep, stopSweep, updateSweep } from "./answer/sweep.mjs";
import { makeGpuTable, openGpuTable, updateGpuTable } from "./answer/tables.mjs";
import { commandOf } from "./words.mjs";

const STARTING = "Starting Python in your browser …";

/**
 * An answer that takes longer than this is reported as being computed. Most are faster, and a message would flicker.
 */
const COMPUTING_SHOWN_AFTER_MS = 150;
/** A screen reader hears the total when the reader has paused for this long. */
const SPOKEN_AFTER_MS = 600;
/** Answers to likely next requests are computed after this pause, when the browser has painted the current answer. */
const AHEAD_AFTER_MS = 30;
/** Advice takes Python several answers' time, so it is asked for only when the reader pauses. */
const ADVICE_AFTER_MS = 300;
/** A change is added to the history when its answer is shown, but at most this much later. */
const IN_HISTORY_WITHIN_MS = 100;
const LONGEST_MESSAGE = 500;
/** The tables below the answer, and the field that a press on one of their names sets. */
const TABLES = { gpus: "gpu", generate: "gpu", models: "model" };

/**
 * @typedef {object} Page the page's state
 * @property {HTMLElement} root the calculator's element
 * @property {object} runtime where to fetch the browser's Python; see python/python.mjs
 * @property {AbortController} ended aborted when the theme has swapped in another page
 * @property {object} view the elements that show the answer; see answer/show.mjs
 * @property {Form} form see form.mjs
 * @property {object} pins the pinned setups; see answer/pins.mjs
 * @property {GpuTable[]} tables with a row for every GPU; see answer/tables.mjs
 * @property {object} sweep the chart over a range; see answer/sweep.mjs
 * @property {object} answered the request whose answer is shown
 * @property {number} asked number of requests so far: an answer is dropped if a later request exists
 * @property {boolean} awake whether Python was asked for anything yet
 * @property {string} said the message in the live region
 * @property {string} limited says which texts a change of the model has shortened
 * @property {number} speaking timer: when it ends, a screen reader hears the total
 * @property {HTMLElement | null} typing the control that the reader types into: all its changes are one history entry
 * @property {number[]} pauses timers of the work that is done while the reader looks at an answer
 * @property {Promise} inHistory resolves when the history contains every change so far; changes are added one by one
 */

/** Starts the page; returns what stops it. */
export function start(root) {
  const page = makePage(root);
  document.documentElement.classList.toggle("embedded", isEmbedded(location));
  listen(page);
  followAddress(page);
  showFitting(page.form);
  updateJoinLink(page);
  root.querySelectorAll("fieldset, button, [name=words]").forEach((part) => (part.disabled = false));
  updateDetails(page); // the reader may have opened them before this script came
  return () => {
    page.ended.abort();
    document.documentElement.classList.remove("embedded");
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
    limited: "",
    speaking: 0,
    typing: null,
    pauses: [],
    inHistory: Promise.resolve(),
  };
  page.pins = makePins(view.slot("pins"), pinsPage(page));
  page.tables = Object.entries(TABLES).map(([name, field]) =>
    makeGpuTable(view.slot(name), {
      ask: (request) => askPython(page.runtime, name, request),
      request: () => requestOf(form),
      refusal: (sentence) => refusalOf(form, sentence),
      choose: (value) => choose(page, field, value),
    }),
  );
  page.sweep = makeSweep(view.slot("sweep"), {
    ask: (request) => askPython(page.runtime, "sweep", request),
    request: () => requestOf(form),
    refusal: (sentence) => refusalOf(form, sentence),
    plotly: root.dataset.plotly,
  });
  return page;
}

/** The part of the page that the pinned setups use; see `Pins` in answer/pins.mjs. */
function pinsPage(page) {
  const { form } = page;
  return {
    ask: (request) => askPython(page.runtime, "answer", request),
    query: () => queryOf(form),
    requestOf: (query) => requestOf(form, valuesOf(form, query)),
    names: (queries) => namesOfQueries(form, queries),
    refusal: (sentence) => refusalOf(form, sentence),
    open: (query) => open(page, query),
    changed: () => (page.inHistory = page.inHistory.then(() => remember(page, "push"))),
  };
}

function listen(page) {
  const { form, view } = page;
  listenToForm(page);
  keepInSight(form, page.ended.signal);
  const { model } = form.element.elements;
  makeCombobox(model, () => currentAddress(page) !== location.href && modelChanged(page, model));
  view.slot("choices").addEventListener("click", (event) => takeAdvice(page, event));
  const readWith = (name, request, control) => read(page, name, request, control);
  startPasting(view.slot, form, { readWith, changed: () => modelChanged(page) });
  const { model: _, ...defaults } = requestOf(form, form.defaults).setup;
  startSearching(view.slot, { readWith, defaults, show: (answer) => showQuestion(page, answer) });
  startSharing(view.slot);
  startSaving(view.slot, { askExport: () => askOrError(page, "export", requestOf(form)), say: (sentence) => say(page, refusalOf(form, sentence)) });
  addEventListener("popstate", () => stepInHistory(page), { signal: page.ended.signal });
}

function listenToForm(page) {
  const { element } = page.form;
  element.addEventListener("input", ({ target }) => {
    if (target.name === "model") modelChanged(page, target);
    else if (target.dataset.kind) changed(page, target);
  });
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

/**
 * At load: shows the setup that the address names. Until its answer comes the total is "…", because the HTML's total
 * belongs to another setup.
 */
function followAddress(page) {
  if (!location.search) return;
  readAddress(page);
  if (!queryOf(page.form).size) return;
  page.view.slot("total").textContent = "…";
  page.view.slot("saving").textContent = "";
  page.root.dataset.state = "computing";
  compute(page);
}

function readAddress(page) {
  const { query, pinned } = partsOf(location.search);
  writeForm(page.form, valuesOf(page.form, query));
  setPins(page.pins, pinned);
}

/** The reader went back or forward, so the browser has already changed the address. */
function stepInHistory(page) {
  page.typing = null;
  readAddress(page);
  compute(page);
}

/** Shows the setup of a query as if the reader had set it. */
function open(page, query) {
  show(page, valuesOf(page.form, query));
}

/** Sets a field to the name that was pressed in a table; a listed model replaces a pasted one. */
function choose(page, field, value) {
  const values = { ...readForm(page.form), [field]: value };
  // What a question has hidden comes back above the table, and its answer with it.
  if (page.root.dataset.alone) page.root.scrollIntoView({ block: "start" });
  show(page, field === "model" ? { ...values, config: "" } : values);
}

function show(page, values) {
  writeForm(page.form, values);
  changed(page);
}

/**
 * Shows what belongs to a question: its setup in the form, and the table that it opens. If that alone answers it, what is
 * about training the form's model is hidden until the next answer.
 */
function showQuestion(page, { values, opens, fields, alone }) {
  const table = page.tables.find(({ details }) => details.dataset.slot === opens);
  writeForm(page.form, { ...page.form.defaults, ...values });
  if (table) openGpuTable(table, fields);
  if (!alone) return changed(page);
  page.typing = null;
  page.root.dataset.alone = opens;
  page.root.dataset.state = "shown";
  say(page, "");
  page.inHistory = page.inHistory.then(() => remember(page, "push"));
}

/** Applies the changes that the pressed "Set it" button proposes. */
function takeAdvice(page, event) {
  const button = event.target.closest("[data-changes]");
  if (!button) return;
  writeForm(page.form, { ...readForm(page.form), ...JSON.parse(button.dataset.changes) });
  changed(page);
  // The new advice removes the pressed button, and the focus with it. The total gets the focus instead: a form field
  // would open a phone's keyboard.
  const total = page.view.slot("total");
  total.scrollIntoView({ block: "nearest" });
  total.parentElement.focus({ preventScroll: true });
}

/** Handles a change of the model. Texts beyond what it accepts are shortened, and the page says so beside the answer. */
function modelChanged(page, control = null) {
  const limited = keepWithinLimits(page.form);
  changed(page, control);
  page.limited = limited;
}

/** Handles a change by the reader. All that is typed into one field is one history entry. */
function changed(page, control = null) {
  page.limited = "";
  const typed = isTyped(control);
  const how = typed && page.typing === control ? "replace" : "push";
  page.typing = typed ? control : null;
  const values = readForm(page.form);
  const pinned = page.pins.list;
  const url = () => addressOf(location.href, queryOf(page.form, values), pinned);
  // Adding a history entry takes the browser several milliseconds. Done first, it would delay the answer's frame.
  const longEnough = new Promise((resolve) => setTimeout(resolve, IN_HISTORY_WITHIN_MS));
  const answered = Promise.race([compute(page, control, values), longEnough]);
  const nextTask = () => new Promise((resolve) => setTimeout(resolve));
  page.inHistory = page.inHistory.then(() => answered).then(nextTask).then(() => remember(page, how, url()));
}

const isTyped = (control) => ["number", "part"].includes(control?.dataset.kind) || control?.name === "model";

function currentAddress(page) {
  return addressOf(location.href, queryOf(page.form), page.pins.list);
}

function remember(page, how, url = currentAddress(page)) {
  if (!page.ended.signal.aborted) goTo(url, how);
}

/** Puts the form's setup into the link to the join page. */
function updateJoinLink(page) {
  const link = page.view.slot("join");
  const setup = readForm(page.form);
  link.href = joinAddress(link.href, setup);
  // The runs' other settings are in their recipes, so only these two go along; no run trains most of the models here.
  const isOfARun = !setup.config && link.dataset.runs.split(" ").includes(setup.model);
  link.textContent = isOfARun ? "Join with this micro-batch and GPU" : "How to join a run";
}

/** Puts a setup into the link to the figure of its step; `curve` are the figure's values in an address. */
function updateCurveLink({ view }, { curve }) {
  const link = view.slot("curve");
  const url = new URL(link.href);
  url.search = new URLSearchParams(curve);
  link.href = url.href;
}

/** Asks Python about the form's setup and shows the answer, unless a later request was made meanwhile. */
async function compute(page, control = null, values = readForm(page.form)) {
  delete page.root.dataset.alone;
  showFitting(page.form, values);
  const request = requestOf(page.form, values);
  const answer = await newestAnswer(page, "answer", request);
  if (!answer) return;
  markRefused(page.form, answer.error);
  if (answer.failed) return showFailure(page, answer.failed, request);
  if (answer.error) return showRefusal(page, answer.error);
  if (values.config) {
    usePasted(page.form, answer.own);
    // Only Python's answer says which fields apply to a pasted model. If that changes the request, it is asked again.
    if (!isSame(requestOf(page.form, values), request)) return compute(page, control, values);
  }
  showAnswer(page, request, answer);
  afterwards(page, request, control, answer.spoken);
}

/**
 * Python's reading of a text that the reader gave. A text that it refuses is said in the place of the answer: the last
 * setup's answer would look like this text's. The control gets the focus then, so that the text can be mended.
 *
 * @returns {Promise<object | null>} null if the text is refused, or the reader has meanwhile changed the setup
 */
async function read(page, name, request, control) {
  const answer = await newestAnswer(page, name, request);
  if (!answer) return null;
  mark(page.form, answer.error ? [control] : []);
  if (answer.failed) showFailure(page, answer.failed, requestOf(page.form));
  else if (answer.error) showRefusal(page, answer.error);
  else return answer;
  control.focus();
  return null;
}

/** Python's answer, or {failed}; null if the reader has asked something else meanwhile, or the page has ended. */
async function newestAnswer(page, name, request) {
  page.awake = true;
  const mine = ++page.asked;
  const late = setTimeout(() => sayComputing(page), COMPUTING_SHOWN_AFTER_MS);
  const answer = await askPython(page.runtime, name, request).catch((error) => ({ failed: error.message }));
  clearTimeout(late);
  if (!isNewest(page, mine)) return null;
  page.root.dataset.python = startedBy();
  return answer;
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
  updateCurveLink(page, answer);
  page.answered = request;
  page.root.dataset.state = "shown";
  say(page, page.limited);
  updateDetails(page);
}

/**
 * Shows why Python refused the setup. The numbers of the last valid setup stay, except in the tables and the chart below
 * them: a model generates text even if its training is refused, and the table says of which setup it speaks nowhere.
 */
function showRefusal(page, error) {
  delete page.root.dataset.alone;
  page.root.dataset.state = "refused";
  say(page, refusalOf(page.form, error).slice(0, LONGEST_MESSAGE));
  updateDetails(page);
}

/** What the reader has opened below the answer. */
function updateDetails(page) {
  updateSweep(page.sweep);
  page.tables.forEach(updateGpuTable);
}

/** Python does not run in this browser. The page still shows the command line that computes the form's setup. */
function showFailure(page, reason, request) {
  const other = !isSame(request, page.answered);
  page.root.dataset.state = "failed";
  if (other || page.root.hasAttribute("data-stale")) setCommand(page.view.slot("command"), commandOf(request));
  updateJoinLink(page);
  page.root.toggleAttribute("data-stale", other);
  const whose = other ? " for the setup in the form; the numbers shown belong to another setup" : "";
  say(page, `The browser's Python failed: ${reason}. The command below works without a browser${whose}.`);
}

/** Writes a message into the live region and removes an earlier setup's total. A repeated message is not announced. */
function say(page, sentence) {
  clearTimeout(page.speaking);
  if (sentence === page.said) return;
  page.said = sentence;
  page.view.slot("message").textContent = sentence;
  if (sentence) page.view.slot("spoken").textContent = "";
}

/**
 * Schedules the work that can wait until the answer is visible: likely next answers, and the advice, which takes
 * longer. A screen reader hears the total after a pause; otherwise it would read one total for each key press.
 */
function afterwards(page, request, control, spoken) {
  const mine = page.asked;
  page.speaking = setTimeout(() => (page.view.slot("spoken").textContent = spoken), SPOKEN_AFTER_MS);
  page.pauses.forEach(clearTimeout);
  page.pauses = [
    setTimeout(() => {
      updateJoinLink(page);
      keepForOffline(page.runtime, [page.root.dataset.plotly]);
    }),
    setTimeout(() => answerAhead(neighboursOf(page.form, control)), AHEAD_AFTER_MS),
    setTimeout(() => advise(page, mine, request), ADVICE_AFTER_MS),
  ];
}

/** Asks which changes would save memory, and shows the advice if the setup is still the current one. */
async function advise(page, mine, request) {
  const advice = await askOrError(page, "advise", request);
  if (isNewest(page, mine)) showAdvice(page.view, advice);
}
