// Fills the join command with the live run's own addresses.

import { describe, followRun, isOver } from "./live.mjs";

export function start(root) {
  const slot = (name) => root.querySelector(`[data-slot="${name}"]`);
  const general = {
    command: slot("command").textContent,
    label: slot("status-label").textContent,
    text: slot("status-text").textContent,
  };

  function show(feed) {
    if (feed.phase === "loading" || !feed.changed) return;
    const live = feed.phase === "known" && !isOver(feed) && Boolean(feed.run.join_command);
    const { kind, label, text } = live ? describe(feed) : { kind: "none", ...general };
    slot("status").dataset.kind = kind;
    slot("status-label").textContent = label;
    slot("status-text").textContent = live ? `${feed.run.title}. ${text}` : text;
    slot("title").textContent = live ? "The command for this run" : "The command";
    const command = live ? feed.run.join_command : general.command;
    if (slot("command").textContent !== command) slot("command").textContent = command;
    slot("gaps").classList.toggle("hidden", live);
    slot("filled").classList.toggle("hidden", !live);
    slot("program").textContent = command.split(" join ")[0];
    slot("local").classList.toggle("hidden", !live || !command.includes("/127.0.0.1/"));
  }

  return followRun(show);
}
