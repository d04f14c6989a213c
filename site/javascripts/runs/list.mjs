// The list of runs on the join page: each with its live state, what it trains and what it needs. A run's link shows the
// page for that run; a form takes the address of any monitor.

import { element } from "../parts/elements.mjs";
import { describe, emptyFeed, isOver, isRecording } from "./feed.mjs";
import { showBytes, showCount } from "../parts/format.mjs";
import { OWN, runAt, withRun } from "./address.mjs";
import { chosenRun, hasMonitor, listedRuns } from "./chosen.mjs";
import { ask } from "./documents.mjs";

const LOOK_EVERY_MS = 15_000;

/** Starts the list; returns what stops it. */
export function start(root) {
  const slot = (name) => root.querySelector(`[data-slot="${name}"]`);
  const part = { list: slot("list"), stopped: false, timer: 0 };
  slot("another").addEventListener("submit", (event) => {
    event.preventDefault();
    goTo(slot("another").elements.run.value, slot("another-fault"));
  });
  begin(part);
  return () => {
    part.stopped = true;
    clearTimeout(part.timer);
  };
}

/** Shows the run of a pasted address, or the reason why it cannot be shown. */
function goTo(text, place) {
  const run = runAt(text, location.href);
  place.textContent = run.fault ?? "";
  place.classList.toggle("hidden", !run.fault);
  if (!run.fault) location.href = withRun(location.href.split("#")[0], run);
}

async function begin(part) {
  const chosen = await chosenRun();
  const runs = await shownRuns(chosen);
  if (part.stopped) return;
  const lines = runs.map((run) => ({ run, line: lineOf(run, run.key === chosen.key) }));
  part.list.replaceChildren(...lines.map(({ line }) => line));
  look(part, lines);
}

/** The site's own run and those of runs.json; the site of a monitor asks no others. The chosen run is always there. */
async function shownRuns(chosen) {
  const listed = (await hasMonitor(OWN)) ? [] : await listedRuns(location.href);
  const runs = [OWN, ...listed];
  return runs.some(({ key }) => key === chosen.key) ? runs : [...runs, chosen];
}

/** A run's line in the list, before anything is known of it. */
function lineOf(run, isChosen) {
  const link = element("a", [run.title]);
  link.href = withRun(location.href.split("#")[0], run);
  // The theme swaps pages by itself, but only for another path; the browser then loads this page anew.
  link.addEventListener("click", (event) => event.stopPropagation());
  if (isChosen) link.ariaCurrent = "true";
  const label = element("span", ["Looking"]);
  label.className = "status__label";
  const host = element("span", [run.key.replace(/^https?:\/\//, "")]);
  host.className = "runs__host";
  const head = element("p", [link, label, host]);
  head.className = "status";
  head.dataset.kind = "loading";
  return element("li", [head, element("p", [])]);
}

/** Shows the state of all runs at intervals, except while the page is hidden. */
async function look(part, lines) {
  if (!document.hidden) await Promise.all(lines.map(async ({ run, line }) => show(line, await feedOf(run))));
  if (!part.stopped) part.timer = setTimeout(look, LOOK_EVERY_MS, part, lines);
}

/** What is known of a run now; see feed.mjs. */
async function feedOf(run) {
  if (run.fault) return emptyFeed("refused", run);
  try {
    return await knownOf(run);
  } catch (error) {
    if (run.record && run.base !== run.record) return feedOf({ ...run, base: run.record });
    return emptyFeed(error.status === 404 || error.status === 200 ? "none" : "unreachable", run);
  }
}

async function knownOf(run) {
  const { document } = await ask(run, "run.json");
  if (!document.run_id) return emptyFeed("none", run);
  const [state, board] = await Promise.all(["state.json", "leaderboard.json?most=1"].map((path) => ask(run, path)));
  const { volunteers, total } = board.document;
  return { ...emptyFeed("known", run), run: document, state: state.document, total: total ?? volunteers.length };
}

function show(line, feed) {
  const [link, label] = line.firstElementChild.children;
  const { kind, label: told, text } = describe(feed);
  line.hidden = feed.phase === "none" && !feed.at.key; // this site has no run of its own
  if (feed.run) link.textContent = feed.run.title;
  label.textContent = told;
  line.firstElementChild.dataset.kind = kind;
  line.lastElementChild.textContent = (feed.run ? factsOf(feed, text) : [text]).join(" ");
}

/** Sentences: what the run trains, how it stands, how many take part, and what it needs. */
export function factsOf(feed, standing) {
  const { run } = feed;
  const size = run.parameters ? [`It has ${showCount(run.parameters)} parameters.`] : [];
  const needs = isOver(feed) ? [] : needsOf(run);
  return [run.description ?? "", ...size, standing, peopleOf(feed), ...needs].filter(Boolean);
}

/** How many take part or took part; empty for a recording of one machine, whose standing says it. */
function peopleOf(feed) {
  const { run, state, total } = feed;
  if (!isOver(feed)) return takePart(state.active_peers);
  if (isRecording(feed) && run.one_machine) return "";
  return `${total === 1 ? "1 volunteer" : `${showCount(total)} volunteers`} took part.`;
}

function needsOf({ least_memory_bytes: memory, sent_bytes: sent }) {
  return [
    ...(memory ? [`A volunteer needs at least ${showBytes(memory)} of memory beside Python and PyTorch.`] : []),
    ...(sent ? [`In a small group, each volunteer sends about ${showBytes(sent)} per epoch.`] : []),
  ];
}

function takePart(count) {
  return count === 1 ? "1 volunteer takes part now." : `${showCount(count)} volunteers take part now.`;
}
