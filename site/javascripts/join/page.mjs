// The join command for the reader's machine: choices -> one command, what it uses, or in words why it cannot be.
// A live run fills in its own recipe and addresses; the calculator's link carries a micro-batch.

import { setCommand } from "./listing.mjs";
import { describe, followRun, isOver } from "./live.mjs";

const LONGEST_NAME = 40;
const NAMES = ["system", "device", "gpu", "ram", "link", "recipe"];

export function start(root) {
  const slot = (name) => root.querySelector(`[data-slot="${name}"]`);
  const form = slot("form");
  const choices = JSON.parse(root.dataset.choices);
  const general = { label: slot("status-label").textContent, text: slot("status-text").textContent };
  let live = null;
  let batch = readBatch();
  let shown = "";
  const chosen = (name) => form.elements[name].value;

  preselect();
  form.addEventListener("change", (event) => {
    if (["device", "gpu", "ram", "recipe"].includes(event.target.name)) batch = "";
    remember();
    show(true);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  slot("notebook").addEventListener("click", saveNotebook);
  show(false);

  function set(name, value) {
    const radio = [...form.elements[name]].find((one) => one.value === value);
    if (radio && (value !== "live" || live)) radio.checked = true;
    return Boolean(radio);
  }

  /** The address decides; where it is silent, what the browser says of the system. */
  function preselect() {
    const given = new URLSearchParams(location.search);
    for (const name of NAMES) {
      if (!(given.has(name) && set(name, given.get(name))) && name === "system") set("system", platform());
    }
    const size = choices.gpu_sizes[given.get("gpu")] ?? sizeBelow(given.get("gpu")); // the calculator names the GPU itself
    if (size) {
      set("device", "nvidia");
      set("gpu", size);
    }
    if (!given.has("model") || set("recipe", given.get("model"))) return;
    batch = ""; // it was worked out for a model that none of these runs trains
    slot("other-model").textContent = given.get("model").slice(0, LONGEST_NAME);
    slot("other").classList.remove("hidden");
  }

  /** Of a card by its memory, such as cuda-20gb: the largest size in the list that is no more. */
  function sizeBelow(name) {
    const memory = /^cuda-([1-9]\d{0,3})gb$/.exec(name)?.[1];
    return [...form.elements.gpu].map(({ value }) => value).filter((size) => Number(size) <= memory).at(-1);
  }

  function remember() {
    const address = new URL(location.href);
    const given = address.searchParams;
    for (const name of ["model", "micro_batch_size"]) given.delete(name);
    const used = NAMES.filter((name) => !(name === "gpu" && chosen("device") !== "nvidia") && !(name === "ram" && chosen("device") !== "cpu"));
    for (const name of NAMES) {
      if (used.includes(name) && (chosen(name) !== choices.default[name] || name === "system")) given.set(name, chosen(name));
      else given.delete(name);
    }
    history.replaceState(history.state, "", address);
  }

  /** Whether the chosen run can be reached from its own computer only: then neither network nor notebook matters. */
  function isLocal() {
    return chosen("recipe") === "live" && live.join_command.includes("/127.0.0.1/");
  }

  /** {words: why it cannot be} or {command, uses, note}. */
  function answer() {
    const [system, device, recipe] = ["system", "device", "recipe"].map(chosen);
    const key = [system, `${system} ${device}`, device].find((one) => one in choices.refusals);
    if (key) return { words: choices.refusals[key] };
    const known =
      recipe === "live"
        ? Object.values(choices.recipes).find((one) => one.digest === live.recipe_digest)
        : choices.recipes[recipe];
    const machine = known?.machines[`${device}-${chosen(device === "nvidia" ? "gpu" : "ram")}`];
    const samples = batch || String(machine?.samples ?? "");
    if (samples === "0") return { words: machine.refusal };
    const words =
      recipe === "live"
        ? [live.join_command]
        : [choices.program, "join", "--recipe", recipe, "--initial-peers", "ADDRESS", "--name", "YOUR-NAME"];
    if (chosen("link") === "router" && !isLocal()) words.push("--client-mode");
    if (device === "cpu") words.push("--device", "cpu");
    if (samples && !words[0].includes("--micro-batch-size")) words.push("--micro-batch-size", samples);
    return { command: words.join(" "), uses: machine?.uses, note: choices.notes[system] };
  }

  function show(announced) {
    for (const row of form.querySelectorAll("[data-for]")) row.hidden = row.dataset.for !== chosen("device");
    const { words, command, uses, note } = answer();
    slot("refusal").classList.toggle("hidden", !words);
    slot("possible").classList.toggle("hidden", Boolean(words));
    if (words) slot("refusal").innerHTML = words;
    else {
      setCommand(slot("command"), command);
      slot("note").textContent = note ?? "";
      slot("note").classList.toggle("hidden", !note);
      slot("chosen").classList.toggle("hidden", !batch);
      slot("chosen-flag").textContent = `--micro-batch-size ${batch}`;
      for (const name of ["memory", "network", "disk"]) {
        slot(`uses-${name}`).textContent = uses?.[name] ?? "not known for this recipe; its maintainer's calculator link says.";
      }
    }
    const own = chosen("recipe") === "live";
    slot("gaps").classList.toggle("hidden", own);
    slot("filled").classList.toggle("hidden", !own);
    slot("set-up").classList.toggle("hidden", own);
    slot("program").textContent = own ? live.join_command.split(" join ")[0] : "";
    slot("local").classList.toggle("hidden", !isLocal());
    slot("link").hidden = slot("by-notebook").hidden = isLocal();
    const said = slot("refusal").textContent;
    if (announced && (words ? said : command) !== shown) slot("announce").textContent = words ? said : `The command is now: ${command}`;
    shown = words ? said : command;
  }

  async function saveNotebook(event) {
    const { command } = answer();
    if (!command) return;
    event.preventDefault();
    const notebook = await (await fetch(root.dataset.notebook)).json();
    const inNotebook = command.replace(choices.program, "python -m nox -s training --");
    notebook.cells.find((cell) => cell.id === "join").source = `!${inNotebook}\n`;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(notebook, null, 1)], { type: "application/x-ipynb+json" }));
    link.download = "join.ipynb";
    link.click();
    URL.revokeObjectURL(link.href);
  }

  return followRun((feed) => {
    if (feed.phase === "loading" || !feed.changed) return;
    const before = live;
    live = feed.phase === "known" && !isOver(feed) && feed.run.join_command ? feed.run : null;
    const { kind, label, text } = live ? describe(feed) : { kind: "none", ...general };
    slot("status").dataset.kind = kind;
    slot("status-label").textContent = label;
    slot("status-text").textContent = live ? `${feed.run.title}. ${text}` : text;
    slot("title").textContent = live ? "The command for this run" : "The command";
    slot("live-recipe").classList.toggle("hidden", !live);
    if (live) slot("live-title").textContent = `live now: ${live.title}`;
    const asked = new URLSearchParams(location.search).get("recipe");
    if (live && !before && (!asked || asked === "live")) set("recipe", "live");
    if (!live && chosen("recipe") === "live") set("recipe", choices.default.recipe);
    for (const [name, known] of Object.entries(choices.recipes)) {
      const again = live?.recipe_digest === known.digest && chosen("recipe") !== name; // the same run, without its address
      form.querySelector(`[data-recipe="${name}"]`).classList.toggle("hidden", again);
    }
    show(false);
  });
}

/** Nothing but a number goes into a command. */
function readBatch() {
  const given = new URLSearchParams(location.search).get("micro_batch_size") ?? "";
  return /^[1-9]\d{0,5}$/.test(given) ? given : "";
}

function platform() {
  const said = `${navigator.userAgentData?.platform ?? ""} ${navigator.platform ?? ""}`.toLowerCase();
  if (said.includes("mac")) return "macos";
  return said.includes("win") ? "wsl" : "linux";
}
