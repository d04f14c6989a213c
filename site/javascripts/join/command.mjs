// The join command: turns a reader's choices into one command and what it uses, or into the reason why there is none.
// Nothing here touches the document. `choices` comes from site/builder/join/choices.py.

/**
 * @typedef {object} Chosen the reader's choices
 * @property {string} system
 * @property {string} device
 * @property {string} gpu memory of the GPU; used if the device is "nvidia"
 * @property {string} ram memory of the computer; used for other devices
 * @property {string} link
 * @property {string} recipe a name, or "live" for the live run
 * @property {string} batch the micro-batch in the address, or empty
 */

export const NAMES = ["system", "device", "gpu", "ram", "link", "recipe"];

/**
 * {command, uses, note}, or {words} with the reason why no command fits the choices.
 *
 * @param {object} choices
 * @param {Chosen} chosen
 * @param {object | null} live the live run, if there is one
 */
export function answerTo(choices, chosen, live) {
  const { system, device } = chosen;
  const refused = [system, `${system} ${device}`, device].find((key) => key in choices.refusals);
  if (refused) return { words: choices.refusals[refused] };
  const machine = recipeOf(choices, chosen, live)?.machines[machineOf(chosen)];
  const samples = chosen.batch || String(machine?.samples ?? "");
  if (samples === "0") return { words: machine.refusal };
  const words = [...beginning(choices, chosen, live), ...flags(chosen, live)];
  if (samples && !words[0].includes("--micro-batch-size")) words.push("--micro-batch-size", samples);
  return { command: words.join(" "), uses: machine?.uses, note: choices.notes[system] };
}

/** The chosen recipe's entry; undefined for a live run whose recipe is not one of the site's. */
function recipeOf(choices, { recipe }, live) {
  if (recipe !== "live") return choices.recipes[recipe];
  return Object.values(choices.recipes).find(({ digest }) => digest === live.recipe_digest);
}

const machineOf = ({ device, gpu, ram }) => `${device}-${device === "nvidia" ? gpu : ram}`;

/** The start of the command. A live run provides it whole; otherwise it contains gaps that the reader fills in. */
function beginning(choices, { recipe }, live) {
  if (recipe === "live") return [live.join_command];
  return [choices.program, "join", "--recipe", recipe, "--initial-peers", "ADDRESS", "--name", "YOUR-NAME"];
}

function flags(chosen, live) {
  const router = chosen.link === "router" && !isLocal(chosen, live) ? ["--client-mode"] : [];
  return [...router, ...(chosen.device === "cpu" ? ["--device", "cpu"] : [])];
}

/** Whether the chosen run can only be reached from its own computer; then neither network nor notebook matters. */
export function isLocal({ recipe }, live) {
  return recipe === "live" && live.join_command.includes("/127.0.0.1/");
}

/**
 * The page's address with the choices that are used and differ from the defaults. The system is always included,
 * because its default differs from browser to browser.
 */
export function addressOf(href, chosen, defaults) {
  const url = new URL(href);
  for (const name of ["model", "micro_batch_size"]) url.searchParams.delete(name);
  const unused = { gpu: chosen.device !== "nvidia", ram: chosen.device !== "cpu" };
  for (const name of NAMES) {
    if (!unused[name] && (chosen[name] !== defaults[name] || name === "system")) url.searchParams.set(name, chosen[name]);
    else url.searchParams.delete(name);
  }
  return url;
}

/**
 * The micro-batch in an address; empty unless it is a number, so that an address cannot put other text into the
 * command.
 */
export function batchIn(query) {
  const given = query.get("micro_batch_size") ?? "";
  return /^[1-9]\d{0,5}$/.test(given) ? given : "";
}

/**
 * The listed memory for a GPU's name in the calculator. For a card that is named by its memory this is the largest
 * listed memory that does not exceed it. Undefined if there is none.
 */
export function sizeOf(gpu, gpuSizes, listed) {
  if (Object.hasOwn(gpuSizes, gpu)) return gpuSizes[gpu];
  const memory = /^cuda-([1-9]\d{0,3})gb$/.exec(gpu)?.[1];
  return listed.filter((size) => Number(size) <= memory).at(-1);
}

/** The system on which the browser says it runs. */
export function systemIn(...words) {
  const said = words.join(" ").toLowerCase();
  if (said.includes("mac")) return "macos";
  return said.includes("win") ? "wsl" : "linux";
}
