// The command: turns a reader's choices into one command and what it uses, or into the reason why there is none. Every
// command is whole: it joins the run that the page shows, or it starts a demo.
// Nothing here touches the document. `choices` comes from site/builder/join/choices.py.

import { showBytes } from "../parts/format.mjs";
import { isLoopback } from "../runs/address.mjs";

/**
 * @typedef {object} Chosen the reader's choices
 * @property {string} system
 * @property {string} device
 * @property {string} gpu memory of the GPU; used if the device is "nvidia"
 * @property {string} ram memory of the computer; used for other devices
 * @property {string} recipe the recipe of a demo, or "live" for the live run
 * @property {string} batch the calculator's micro-batch for the live run, or empty
 * @property {string} name the name on the leaderboard, or empty
 */

export const NAMES = ["system", "device", "gpu", "ram", "recipe"];

/**
 * {command, uses, note}, or {words} with the reason why no command fits the choices.
 *
 * @param {object} choices
 * @param {Chosen} chosen
 * @param {object | null} live the live run's document with its `command`, if there is one
 */
export function answerTo(choices, chosen, live) {
  const { system, device, recipe } = chosen;
  if (recipe !== "live") return demoOf(choices, chosen);
  const refused = [system, `${system} ${device}`, device].find((key) => key in choices.refusals);
  if (refused) return { words: choices.refusals[refused] };
  const machine = recipeOf(choices, live)?.machines[machineOf(chosen)];
  const samples = chosen.batch || String(machine?.samples ?? "");
  if (samples === "0") return { words: machine.refusal };
  const words = [live.command, ...(device === "cpu" ? ["--device", "cpu"] : [])];
  if (samples && !live.command.includes("--micro-batch-size")) words.push("--micro-batch-size", samples);
  if (chosen.name) words.push("--name", quoted(chosen.name));
  return { command: words.join(" "), uses: machine?.uses ?? usesOf(choices, chosen, live), note: choices.notes[system] };
}

/** A demo needs no choices but the system, which may be one on which the trainer does not run. */
function demoOf(choices, { system, recipe }) {
  if (system in choices.refusals) return { words: choices.refusals[system] };
  return { command: choices.demos[recipe], uses: choices.demo_uses, note: choices.notes[system] };
}

/** What a run of another recipe uses, as far as its monitor says it. */
function usesOf(choices, chosen, { least_memory_bytes: memory, sent_bytes: sent }) {
  return {
    memory: memory && `at least ${showBytes(memory)} on a computer without a GPU; Python and PyTorch need memory besides.`,
    network: sent && `for each epoch, about ${showBytes(sent)} sent and as much received in a small group; and the download of the samples that you train on.`,
    disk: choices.recipes[choices.default.recipe].machines[machineOf(chosen)]?.uses?.disk,
  };
}

/** The entry of a live run's recipe; undefined if it is not one of the site's. */
export function recipeOf(choices, live) {
  return Object.values(choices.recipes).find(({ digest }) => digest === live.recipe_digest);
}

const machineOf = ({ device, gpu, ram }) => `${device}-${device === "nvidia" ? gpu : ram}`;

/**
 * The command that joins a run, without the flags of a machine.
 *
 * The server of this site may say its own words: those of a demo name the program on this computer. Of another monitor,
 * which may be anybody's, only the address goes into the command; runs/address.mjs has checked its characters.
 *
 * @param {object} run the run's document
 * @param {Run} at see runs/address.mjs
 */
export function commandOf(choices, run, { key }) {
  if (!key) return run.join_command.replace(/^training-transformers-together(?= )/, choices.program);
  const members = isForMembers(choices, run) ? ` ${choices.members}` : "";
  return choices.join.replaceAll(choices.run, key) + members;
}

/** Whether a run admits members only. */
export function isForMembers(choices, run) {
  return run.join_command.includes(` ${choices.members}`);
}

/** Whether a run can only be reached from its own computer. */
export function isLocal({ command }) {
  return command.split(" ").some((word) => URL.canParse(word) && isLoopback(new URL(word).hostname));
}

/** The text of the notebook's cell that names the run and the flags, from the one that names no run. */
export function settingsOf(text, choices, live, command) {
  const [address] = /https?:\/\/\S+/.exec(live.command);
  const flags = `${isForMembers(choices, live) ? choices.members : ""}${command.slice(live.command.length)}`.trim();
  return text.replace(/"https:.*?"/, () => JSON.stringify(address)).replace('""', () => JSON.stringify(flags));
}

/** Quotes a word for POSIX shells. */
function quoted(word) {
  return /^[\w.-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
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
