// The join command: a reader's choices -> one command and what it uses, or in words why it cannot be. Nothing here
// touches the document. `choices` is what site/builder/join/choices.py gives the page.

/**
 * @typedef {object} Chosen the reader's choices
 * @property {string} system
 * @property {string} device
 * @property {string} gpu memory of the GPU; counts where the device is "nvidia"
 * @property {string} ram memory of the computer; counts for other devices
 * @property {string} link
 * @property {string} recipe a name, or "live" for the run that goes on now
 * @property {string} batch a micro-batch that came with the address, or empty
 */

export const NAMES = ["system", "device", "gpu", "ram", "link", "recipe"];

/**
 * {words: why it cannot be} or {command, uses, note}.
 *
 * @param {object} choices
 * @param {Chosen} chosen
 * @param {object | null} live the run that goes on now
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

/** What is known of the recipe; of a live run's, only where it is one of the site's own. */
function recipeOf(choices, { recipe }, live) {
  if (recipe !== "live") return choices.recipes[recipe];
  return Object.values(choices.recipes).find(({ digest }) => digest === live.recipe_digest);
}

const machineOf = ({ device, gpu, ram }) => `${device}-${device === "nvidia" ? gpu : ram}`;

/** A live run names its whole command; others leave gaps. */
function beginning(choices, { recipe }, live) {
  if (recipe === "live") return [live.join_command];
  return [choices.program, "join", "--recipe", recipe, "--initial-peers", "ADDRESS", "--name", "YOUR-NAME"];
}

function flags(chosen, live) {
  const router = chosen.link === "router" && !isLocal(chosen, live) ? ["--client-mode"] : [];
  return [...router, ...(chosen.device === "cpu" ? ["--device", "cpu"] : [])];
}

/** Whether the chosen run can be reached from its own computer only: then neither network nor notebook matters. */
export function isLocal({ recipe }, live) {
  return recipe === "live" && live.join_command.includes("/127.0.0.1/");
}

/** The page's address with the choices that count and differ from the first ones; the system stands there always. */
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

/** The micro-batch of an address; empty for anything but a number, so that nothing else goes into a command. */
export function batchIn(query) {
  const given = query.get("micro_batch_size") ?? "";
  return /^[1-9]\d{0,5}$/.test(given) ? given : "";
}

/** For a card that the calculator names: the list's memory, or the largest that is no more; undefined without one. */
export function sizeOf(gpu, gpuSizes, listed) {
  const memory = /^cuda-([1-9]\d{0,3})gb$/.exec(gpu)?.[1];
  return gpuSizes[gpu] ?? listed.filter((size) => Number(size) <= memory).at(-1);
}

/** The system that a browser says it runs on. */
export function systemIn(...words) {
  const said = words.join(" ").toLowerCase();
  if (said.includes("mac")) return "macos";
  return said.includes("win") ? "wsl" : "linux";
}
