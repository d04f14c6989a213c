// Fills the join command with the live run's own addresses, and with what was chosen in the calculator.

import { describe, followRun, isOver } from "./live.mjs";

export function start(root) {
  const slot = (name) => root.querySelector(`[data-slot="${name}"]`);
  const general = {
    command: slot("command").textContent,
    label: slot("status-label").textContent,
    text: slot("status-text").textContent,
  };

  const chosen = readChosen();
  slot("chosen").classList.toggle("hidden", !chosen.batch);
  slot("chosen-flag").textContent = chosen.batch;
  slot("command").textContent = withChosen(general.command);

  /** The command with the calculator's settings; a flag that the run gives itself is not given twice. */
  function withChosen(command) {
    const named = chosen.model === "dalle-2021" ? command.replace(" RECIPE ", " dalle-2021 ") : command;
    return chosen.batch && !named.includes("--micro-batch-size") ? `${named} ${chosen.batch}` : named;
  }

  function show(feed) {
    if (feed.phase === "loading" || !feed.changed) return;
    const live = feed.phase === "known" && !isOver(feed) && Boolean(feed.run.join_command);
    const { kind, label, text } = live ? describe(feed) : { kind: "none", ...general };
    slot("status").dataset.kind = kind;
    slot("status-label").textContent = label;
    slot("status-text").textContent = live ? `${feed.run.title}. ${text}` : text;
    slot("title").textContent = live ? "The command for this run" : "The command";
    const command = withChosen(live ? feed.run.join_command : general.command);
    if (slot("command").textContent !== command) slot("command").textContent = command;
    slot("gaps").classList.toggle("hidden", live);
    slot("filled").classList.toggle("hidden", !live);
    slot("program").textContent = command.split(" join ")[0];
    slot("local").classList.toggle("hidden", !live || !command.includes("/127.0.0.1/"));
  }

  return followRun(show);
}

/** What the calculator's link carries: nothing but a number goes into a command. */
function readChosen() {
  const given = new URLSearchParams(location.search);
  const batch = given.get("micro_batch_size") ?? "";
  return { batch: /^[1-9]\d{0,5}$/.test(batch) ? `--micro-batch-size ${batch}` : "", model: given.get("model") };
}
