// The page of one volunteer, `volunteer/?id=…`: what it has contributed to the chosen run, and a picture of it to share.

import { showShare } from "../dashboard/people.mjs";
import { element, heading } from "../parts/elements.mjs";
import { showClock, showCount, showDate, showDuration } from "../parts/format.mjs";
import { showRows } from "../parts/rows.mjs";
import { chosenRun } from "../runs/chosen.mjs";
import { ask } from "../runs/documents.mjs";
import { save } from "../parts/save.mjs";
import { idIn } from "./address.mjs";
import { pngOf } from "./picture.mjs";

const ASK_EVERY_MS = 10_000;
const PERIODS = new Map([[24, "24 hours"], [720, "30 days"], [null, "All time"]]);

/** Starts the page; returns what stops it. */
export function start(root) {
  const slot = (name) => root.querySelector(`[data-slot="${name}"]`);
  const page = { slot, id: idIn(location.href), run: null, timer: 0, stopped: false };
  slot("save").addEventListener("click", () => savePicture(page));
  if (page.id) chosenRun().then((run) => follow(Object.assign(page, { run })));
  return () => {
    page.stopped = true;
    clearTimeout(page.timer);
  };
}

/** Asks for the volunteer at intervals, except while the page is hidden. */
async function follow(page) {
  if (page.run.fault) return tell(page, page.run.fault);
  if (!document.hidden) {
    try {
      const { document: volunteer } = await ask(page.run, `volunteers/${page.id}.json`);
      if (!page.stopped) await show(page, volunteer);
    } catch (error) {
      tell(page, error.status === 404 ? "This run has no such volunteer, or the volunteer is anonymous now." : "The run's server does not answer now.");
    }
  }
  if (!page.stopped) page.timer = setTimeout(follow, ASK_EVERY_MS, page);
}

function tell({ slot }, text) {
  if (slot("told").textContent !== text) slot("told").textContent = text;
}

async function show(page, volunteer) {
  const { slot, run } = page;
  slot("facts").hidden = false;
  slot("name").textContent = volunteer.name;
  tell(page, sentenceOf(volunteer));
  for (const [name, text] of Object.entries(tilesOf(volunteer))) slot(name).textContent = text;
  fill(slot("periods"), volunteer.periods.map(periodTexts));
  fill(slot("missed"), missedTexts(volunteer.missed));
  slot("missed-none").hidden = Object.keys(volunteer.missed).length > 0;
  slot("missed").closest("table").hidden = !slot("missed-none").hidden;
  await showRows(slot("recent"), volunteer.recent.map(recentRow));
  const address = new URL(`live/volunteers/${page.id}`, run.base).href;
  slot("json").href = `${address}.json`;
  slot("svg").href = `${address}.svg`;
  slot("picture").alt = `${volunteer.name}: ${showCount(volunteer.samples)} samples in ${volunteer.title ?? volunteer.run_id}`;
  // The picture changes with the samples only; asked for each time, it would flicker.
  const picture = `${address}.svg?${volunteer.samples}`;
  if (slot("picture").src !== picture) slot("picture").src = picture;
}

/** What the volunteer does now, or when it was there last. */
export function sentenceOf({ active, first_seen, last_seen, machines, title }) {
  const since = `takes part in ${title ?? "this run"} since ${showDate(first_seen)}`;
  const with_ = machines > 1 ? `, with ${showCount(machines)} machines in all` : "";
  return active ? `Training now; ${since}${with_}.` : `Not there now; last seen on ${showDate(last_seen)} at ${showClock(last_seen)}. First seen on ${showDate(first_seen)}${with_}.`;
}

/** Tile -> text. */
export function tilesOf({ samples, share, seconds, periods }) {
  const { rank = null } = periods.find(({ hours }) => hours === null) ?? {};
  return { samples: showCount(samples), share: showShare(share), time: showDuration(seconds), rank: rank === null ? "–" : showCount(rank) };
}

function periodTexts({ hours, samples, share, seconds, rank }) {
  return [PERIODS.get(hours) ?? `${hours} hours`, showCount(samples), showShare(share), showDuration(seconds), rank === null ? "–" : showCount(rank)];
}

/** A row for each reason, the most frequent first. */
export function missedTexts(missed) {
  return Object.entries(missed).sort(([, a], [, b]) => b - a).map(([reason, count]) => [reason, showCount(count)]);
}

function fill(body, rows) {
  const lines = rows.map(([first, ...others]) => element("tr", [heading(first, "row"), ...others.map((text) => element("td", [text]))]));
  body.replaceChildren(...lines);
}

function recentRow({ epoch, time, samples, missed }) {
  const texts = [`${showDate(time)}, ${showClock(time)}`, missed === null ? showCount(samples) : `0: ${missed}`];
  const make = () => element("tr", [heading(showCount(epoch), "row"), element("td", []), element("td", [])]);
  return { key: `${epoch} ${time}`, texts, make };
}

async function savePicture({ slot }) {
  slot("save").disabled = true;
  try {
    save(`${slot("name").textContent}.png`, await pngOf(slot("svg").href));
  } finally {
    slot("save").disabled = false;
  }
}
