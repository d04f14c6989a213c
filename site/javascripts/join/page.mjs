// The join page: shows one command for the reader's choices (command.mjs). For a live run the command contains the
// run's recipe and addresses. A link from the calculator may contain a micro-batch.
//
// At load                   `start` sets the choices that the address names.
// At a choice               `changed` puts the choices into the address and shows their command.
// At a change of the run    `onNews` offers the live run, or removes it.

import { describe, isOver } from "../feed.mjs";
import { setCommand } from "../listing.mjs";
import { followRun } from "../live.mjs";
import { addressOf, answerTo, batchIn, isLocal, NAMES, sizeOf, systemIn } from "./command.mjs";

const LONGEST_NAME = 40;
const USES = ["memory", "network", "disk"];

/** The calculator computed the micro-batch in the address for these choices; it is dropped when one of them changes. */
const BATCH_DEPENDS_ON = ["device", "gpu", "ram", "recipe"];

/**
 * @typedef {object} Join the page's state
 * @property {(name: string) => HTMLElement} slot an element of the page by its name
 * @property {HTMLFormElement} form
 * @property {object} choices from site/builder/join/choices.py
 * @property {{label: string, text: string}} general the status without a live run, from the HTML
 * @property {object | null} live the live run, if there is one
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
    batch: "",
    shown: "",
  };
  readAddress(page, new URLSearchParams(location.search));
  page.form.addEventListener("change", ({ target }) => changed(page, target.name));
  page.form.addEventListener("submit", (event) => event.preventDefault());
  slot("notebook").addEventListener("click", (event) => saveNotebook(page, event, root.dataset.notebook));
  show(page);
  return followRun((feed) => feed.phase !== "loading" && feed.changed && onNews(page, feed));
}

/** The reader's choices; see command.mjs. */
function chosenIn({ form, batch }) {
  return { ...Object.fromEntries(NAMES.map((name) => [name, form.elements[name].value])), batch };
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
  if (given.has("model")) takeModel(page, given.get("model"));
}

/** Sets the memory of a GPU by the calculator's name of the GPU. */
function takeGpu(page, gpu) {
  const listed = [...page.form.elements.gpu].map(({ value }) => value);
  const size = sizeOf(gpu, page.choices.gpu_sizes, listed);
  if (!size) return;
  choose(page, "device", "nvidia");
  choose(page, "gpu", size);
}

/**
 * Chooses the run that trains the calculator's model. If there is none, its micro-batch has no meaning and is dropped.
 */
function takeModel(page, model) {
  if (choose(page, "recipe", model)) return;
  page.batch = "";
  page.slot("other-model").textContent = model.slice(0, LONGEST_NAME);
  page.slot("other").classList.remove("hidden");
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
  for (const row of page.form.querySelectorAll("[data-for]")) row.hidden = row.dataset.for !== chosen.device;
  const answer = answerTo(page.choices, chosen, page.live);
  page.slot("refusal").classList.toggle("hidden", !answer.words);
  page.slot("possible").classList.toggle("hidden", Boolean(answer.words));
  if (answer.words) page.slot("refusal").innerHTML = answer.words;
  else showCommand(page, answer);
  showRun(page, chosen);
  page.shown = answer.words ? page.slot("refusal").textContent : `The command is now: ${answer.command}`;
}

function showCommand({ slot, batch }, { command, note, uses }) {
  setCommand(slot("command"), command);
  slot("note").textContent = note ?? "";
  slot("note").classList.toggle("hidden", !note);
  slot("chosen").classList.toggle("hidden", !batch);
  slot("chosen-flag").textContent = `--micro-batch-size ${batch}`;
  for (const name of USES) {
    slot(`uses-${name}`).textContent = uses?.[name] ?? "not known for this recipe; its maintainer's calculator link says.";
  }
}

/** Shows the notes that belong to a live run's command, or those for other commands. */
function showRun({ slot, live }, chosen) {
  const own = chosen.recipe === "live";
  const local = isLocal(chosen, live);
  for (const place of ["gaps", "set-up"]) slot(place).classList.toggle("hidden", own);
  slot("filled").classList.toggle("hidden", !own);
  slot("program").textContent = own ? live.join_command.split(" join ")[0] : "";
  slot("members").classList.toggle("hidden", !(own && live.join_command.includes(" --invitation CODE")));
  slot("local").classList.toggle("hidden", !local);
  slot("link").hidden = slot("by-notebook").hidden = local;
}

function onNews(page, feed) {
  const before = page.live;
  page.live = feed.phase === "known" && !isOver(feed) && feed.run.join_command ? feed.run : null;
  showStanding(page, feed);
  chooseRun(page, before);
  hideTwin(page);
  show(page);
}

function showStanding({ slot, live, general }, feed) {
  const { kind, label, text } = live ? describe(feed) : { kind: "none", ...general };
  slot("status").dataset.kind = kind;
  slot("status-label").textContent = label;
  slot("status-text").textContent = live ? `${live.title}. ${text}` : text;
  slot("title").textContent = live ? "The command for this run" : "The command";
  slot("live-recipe").classList.toggle("hidden", !live);
  if (live) slot("live-title").textContent = `live now: ${live.title}`;
}

/** Chooses a live run when it appears, unless the address names another one; returns to the default when it is gone. */
function chooseRun(page, before) {
  const asked = new URLSearchParams(location.search).get("recipe");
  if (page.live && !before && (!asked || asked === "live")) choose(page, "recipe", "live");
  if (!page.live && chosenIn(page).recipe === "live") choose(page, "recipe", page.choices.default.recipe);
}

/** Hides the recipe of the live run, unless it is chosen: it stands for the same run, but without its addresses. */
function hideTwin(page) {
  const { recipe } = chosenIn(page);
  for (const [name, { digest }] of Object.entries(page.choices.recipes)) {
    const isTwin = page.live?.recipe_digest === digest && recipe !== name;
    page.form.querySelector(`[data-recipe="${name}"]`).classList.toggle("hidden", isTwin);
  }
}

/**
 * Saves the notebook with the current command in it. Without a command the browser follows the link to the general one.
 */
async function saveNotebook(page, event, address) {
  const { command } = answerTo(page.choices, chosenIn(page), page.live);
  if (!command) return;
  event.preventDefault();
  const notebook = await (await fetch(address)).json();
  const inNotebook = command.replace(page.choices.program, "python -m nox -s training --");
  notebook.cells.find((cell) => cell.id === "join").source = `!${inNotebook}\n`;
  save("join.ipynb", new Blob([JSON.stringify(notebook, null, 1)], { type: "application/x-ipynb+json" }));
}

function save(name, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
