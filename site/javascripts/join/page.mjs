// The join page: shows one command for the reader's choices (command.mjs): it joins the run that the page shows
// (../runs/chosen.mjs) if that is live, or starts a demo. A link from the calculator may contain a micro-batch.
//
// At load                   `start` sets the choices that the address names.
// At a choice               `changed` puts the choices into the address and shows their command.
// At a change of the run    `onNews` offers the live run, or removes it.

import { describe, isOver } from "../runs/feed.mjs";
import { setCommand } from "../parts/listing.mjs";
import { followRun } from "../runs/live.mjs";
import { save } from "../parts/save.mjs";
import { addressOf, answerTo, batchIn, commandOf, isForMembers, isLocal, NAMES, recipeOf, settingsOf, sizeOf, systemIn } from "./command.mjs";

const LONGEST_NAME = 40;
const USES = ["memory", "network", "disk"];

/** The calculator computed the micro-batch in the address for these choices; it is dropped when one of them changes. */
const BATCH_DEPENDS_ON = ["device", "gpu", "ram"];

/**
 * @typedef {object} Join the page's state
 * @property {(name: string) => HTMLElement} slot an element of the page by its name
 * @property {HTMLFormElement} form
 * @property {object} choices from site/builder/join/choices.py
 * @property {{label: string, text: string}} general the status without a live run, from the HTML
 * @property {object | null} live the live run's document with its `command`, if there is one
 * @property {string} model the calculator's model in the address, or empty
 * @property {string} batch the micro-batch in the address, or empty
 * @property {string} shown the shown command or refusal, as a screen reader hears it after a change
 */

/** Starts the page; returns what stops it. */
export function start(root) {
  const slot = (name) => root.querySelector(`[data-slot="${name}"]`);
  const page = {
    slot,
    form: slot("form"),
    choices: JSON.parse(root.dataset.choices),
    general: { label: slot("status-label").textContent, text: slot("status-text").textContent },
    live: null,
    model: "",
    batch: "",
    shown: "",
  };
  readAddress(page, new URLSearchParams(location.search));
  page.form.addEventListener("change", ({ target }) => changed(page, target.name));
  page.form.elements.name.addEventListener("input", () => show(page));
  page.form.addEventListener("submit", (event) => event.preventDefault());
  slot("notebook").addEventListener("click", (event) => saveNotebook(page, event, root.dataset.notebook));
  show(page);
  return followRun((feed) => feed.phase !== "loading" && feed.changed && onNews(page, feed));
}

/** The reader's choices; see command.mjs. */
function chosenIn(page) {
  const values = NAMES.map((name) => [name, page.form.elements[name].value]);
  return { ...Object.fromEntries(values), name: page.form.elements.name.value.trim(), batch: suits(page) ? page.batch : "" };
}

/** Whether the live run trains the calculator's model; otherwise the calculator's micro-batch has no meaning. */
function suits({ choices, live, model }) {
  return !model || (live && choices.recipes[model] && recipeOf(choices, live) === choices.recipes[model]);
}

/** Sets a choice if it is offered; returns whether it is. "live" is only set while there is a live run. */
function choose({ form, live }, name, value) {
  const radio = [...form.elements[name]].find((one) => one.value === value);
  if (radio && (value !== "live" || live)) radio.checked = true;
  return Boolean(radio);
}

/** Sets the choices that the address names; if it does not name the system, the browser's own. */
function readAddress(page, given) {
  page.batch = batchIn(given);
  const known = NAMES.filter((name) => given.has(name) && choose(page, name, given.get(name)));
  if (!known.includes("system")) choose(page, "system", systemIn(navigator.userAgentData?.platform ?? "", navigator.platform ?? ""));
  takeGpu(page, given.get("gpu"));
  page.model = given.get("model") ?? "";
}

/** Sets the memory of a GPU by the calculator's name of the GPU. */
function takeGpu(page, gpu) {
  const listed = [...page.form.elements.gpu].map(({ value }) => value);
  const size = sizeOf(gpu, page.choices.gpu_sizes, listed);
  if (!size) return;
  choose(page, "device", "nvidia");
  choose(page, "gpu", size);
}

function changed(page, name) {
  if (BATCH_DEPENDS_ON.includes(name)) page.batch = "";
  history.replaceState(history.state, "", addressOf(location.href, chosenIn(page), page.choices.default));
  const before = page.shown;
  show(page);
  if (page.shown !== before) page.slot("announce").textContent = page.shown;
}

/** Shows the choices' command, or the reason why there is none. */
function show(page) {
  const chosen = chosenIn(page);
  showRows(page, chosen);
  const answer = answerTo(page.choices, chosen, page.live);
  page.slot("refusal").classList.toggle("hidden", !answer.words);
  page.slot("possible").classList.toggle("hidden", Boolean(answer.words));
  if (answer.words) page.slot("refusal").innerHTML = answer.words;
  else showCommand(page, answer);
  showRun(page, chosen);
  page.slot("other").classList.toggle("hidden", Boolean(suits(page)));
  page.slot("other-model").textContent = page.model.slice(0, LONGEST_NAME);
  page.shown = answer.words ? page.slot("refusal").textContent : `The command is now: ${answer.command}`;
}

/** Shows the rows of the form that the command depends on: a demo settles by itself what it runs on. */
function showRows({ form }, { recipe, device }) {
  for (const row of form.querySelectorAll("[data-of=live]")) row.hidden = recipe !== "live";
  for (const row of form.querySelectorAll("[data-for]")) row.hidden = recipe !== "live" || row.dataset.for !== device;
}

function showCommand(page, { command, note, uses }) {
  const { slot } = page;
  const { batch } = chosenIn(page);
  setCommand(slot("command"), command);
  slot("note").textContent = note ?? "";
  slot("note").classList.toggle("hidden", !note);
  slot("chosen").classList.toggle("hidden", !batch);
  slot("chosen-flag").textContent = `--micro-batch-size ${batch}`;
  for (const name of USES) {
    slot(`uses-${name}`).textContent = uses?.[name] ?? "not known for this recipe.";
  }
}

/** Shows the notes that belong to the command. */
function showRun({ slot, live, choices }, { recipe }) {
  const joins = recipe === "live";
  const local = joins && isLocal(live);
  slot("title").textContent = joins ? "The command for this run" : "Demo on your machine";
  slot("members").classList.toggle("hidden", !(joins && isForMembers(choices, live)));
  slot("local").classList.toggle("hidden", !local);
  slot("set-up").classList.toggle("hidden", local);
  slot("by-notebook").classList.toggle("hidden", !joins || local);
}

function onNews(page, feed) {
  const before = page.live;
  const isLive = feed.phase === "known" && !isOver(feed) && feed.run.join_command;
  page.live = isLive ? { ...feed.run, command: commandOf(page.choices, feed.run, feed.at) } : null;
  showStanding(page, feed);
  chooseRun(page, before);
  show(page);
}

function showStanding({ slot, live, general }, feed) {
  // Without a chosen run, the box says that none is live; with one, it says the state of that run.
  const { kind, label, text } = live || feed.at.key ? describe(feed) : { kind: "none", ...general };
  slot("status").dataset.kind = kind;
  slot("status-label").textContent = label;
  slot("status-text").textContent = live ? `${live.title}. ${text}` : text;
  slot("live-recipe").classList.toggle("hidden", !live);
  if (live) slot("live-title").textContent = live.title;
}

/** Chooses a live run when it appears, unless the address names another one; returns to the default when it is gone. */
function chooseRun(page, before) {
  const asked = new URLSearchParams(location.search).get("recipe");
  if (page.live && !before && (!asked || asked === "live")) choose(page, "recipe", "live");
  if (!page.live && chosenIn(page).recipe === "live") choose(page, "recipe", page.choices.default.recipe);
}

/** Saves the notebook with the run's address and the flags of the command in it. */
async function saveNotebook(page, event, address) {
  event.preventDefault();
  const { command } = answerTo(page.choices, chosenIn(page), page.live);
  const notebook = await (await fetch(address)).json();
  const cell = notebook.cells.find(({ id }) => id === "run");
  cell.source = settingsOf(cell.source, page.choices, page.live, command);
  save("join.ipynb", JSON.stringify(notebook, null, 1));
}
