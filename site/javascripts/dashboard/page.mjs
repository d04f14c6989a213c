// The dashboard: shows a live run, or a recorded one.
//
// At load       `start` creates the page's state and follows the run (runs/live.mjs), which calls `show` with the feed.
// At a change   `show` updates the status; if more than the times has changed, also the numbers: `showRun` shows each part
//               of the page in a task of its own, so that a long run does not keep the browser from answering the reader.

import { describe, emptyFeed, isOver } from "../runs/feed.mjs";
import { showCount, showDuration, showNumber } from "../parts/format.mjs";
import { followRun } from "../runs/live.mjs";
import { makeTable } from "../parts/numbers.mjs";
import { inOwnTask } from "../parts/pieces.mjs";
import { makeChart } from "./chart.mjs";
import { heldOutText, lossLines, lossSummary, lossTable, speedLines, volunteerLines, volunteerTable } from "./lines.mjs";
import { contributorsText, showBoard, showEvents, showMoreButton } from "./people.mjs";
import { showPictures } from "./pictures.mjs";
import { showViews, startViews } from "./views.mjs";

const DOCUMENTS = ["losses", "leaderboard", "pictures", "events"];

/**
 * @typedef {object} Dashboard
 * @property {(name: string) => HTMLElement} slot an element of the page by its name
 * @property {Feed} feed see runs/feed.mjs
 * @property {string} announced the kind of status that a screen reader was told last
 * @property {string} drawn what the charts show
 * @property {string[]} seen the volunteers in the order in which they came, which sets their colours
 * @property {object[]} charts see chart.mjs
 * @property {object} view the epochs that all charts show; see chart.mjs
 * @property {(() => void)[]} tables each function fills a table if it is open
 * @property {Set<string>} waiting names of the parts that are to be shown and are not yet
 * @property {boolean} stopped
 */

/** Starts the page; returns what stops it. */
export function start(root) {
  const slot = (name) => root.querySelector(`[data-slot="${name}"]`);
  const page = { slot, feed: emptyFeed("loading"), announced: "", drawn: "", seen: [], charts: [], view: { last: null, range: null }, tables: [], waiting: new Set(), stopped: false };
  page.charts = makeCharts(page);
  startViews(slot("views"), page.view, () => changeView(page));
  page.tables = [
    makeTable(slot("loss-table"), () => lossTable(page.feed)),
    makeTable(slot("peers-table"), () => volunteerTable(page.feed)),
  ];
  slot("board-more").addEventListener("click", () => page.feed.showMore());
  for (const button of periodButtons(slot)) button.addEventListener("click", () => page.feed.showPeriod(hoursOf(button)));
  slot("pictures-all").addEventListener("click", ({ target }) => togglePictures(page, target));
  const wider = new ResizeObserver(() => page.feed.phase === "known" && showPictures(slot, page.feed.snapshots));
  wider.observe(slot("pictures").closest(".scroll"));
  const stopFollowing = followRun((feed) => show(page, feed), { documents: DOCUMENTS });
  return () => {
    page.stopped = true;
    stopFollowing();
    page.charts.forEach((chart) => chart.stop());
    wider.disconnect();
  };
}

function makeCharts(page) {
  const known = (lines) => () => (page.feed.phase === "known" && page.feed.epochs.length ? lines(page.feed) : null);
  const { view } = page;
  const chart = (name, title, lines, fromZero) =>
    makeChart(page.slot(name), { title, lines: known(lines), fromZero, view, onView: () => changeView(page) });
  return [
    chart("loss-chart", "Loss", (feed) => lossLines(feed, page.seen), false),
    chart("peers-chart", "Volunteers", volunteerLines, true),
    chart("speed-chart", "Samples per second", speedLines, true),
  ];
}

/** Shows other epochs in all charts. */
function changeView({ slot, view, feed, charts }) {
  showViews(slot("views"), view, feed.epochs);
  charts.forEach((chart) => chart.redraw());
}

function togglePictures(page, button) {
  button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true");
  showPictures(page.slot, page.feed.snapshots);
}

function show(page, feed) {
  page.feed = feed;
  if (feed.at?.key && feed.phase !== "known") showUnknown(page, feed.at);
  if (feed.phase === "loading") return;
  showStatus(page, feed);
  page.slot("empty").hidden = feed.phase !== "none";
  // While nobody answers, a recorded run that stands in the page itself stays.
  if (feed.phase !== "unreachable") page.slot("run").classList.toggle("hidden", feed.phase !== "known");
  if (feed.phase === "known" && feed.changed) showRun(page, feed);
}

/** Shows the name of another run, of which nothing is known yet, in place of the recorded run in the page. */
function showUnknown({ slot }, run) {
  slot("title").textContent = run.title;
  slot("run").classList.add("hidden");
}

/** Shows the run's status. A screen reader hears it when its kind changes; the text itself changes every second. */
function showStatus(page, feed) {
  const { slot } = page;
  const { kind, label, text, remedy } = describe(feed);
  slot("status").dataset.kind = kind;
  slot("status-label").textContent = label;
  slot("status-text").textContent = text;
  slot("remedy").textContent = remedy;
  slot("remedy").classList.toggle("hidden", !remedy);
  slot("age").textContent = feed.phase === "known" && !isOver(feed) ? `Last update ${showDuration(feed.age)} ago` : "";
  if (page.announced === kind) return;
  page.announced = kind;
  slot("announce").textContent = `${text} ${remedy}`;
}

function showRun(page, feed) {
  const { slot, charts, tables, seen } = page;
  showTiles(slot, feed);
  const drawn = JSON.stringify([feed.epochs.slice(-3), feed.epochs.length, Object.keys(feed.peers), feed.held_out]);
  if (page.drawn !== drawn) charts.forEach((chart) => chart.redraw()); // in tasks of their own
  page.drawn = drawn;
  later(page, "views", () => showViews(slot("views"), page.view, page.feed.epochs));
  later(page, "tables", () => tables.forEach((fill) => fill()));
  later(page, "summary", () => showSummary(slot, page.feed));
  later(page, "pictures", () => showPictures(slot, page.feed.snapshots));
  later(page, "board", () => {
    showBoard(slot("board"), page.feed, seen);
    showMoreButton(slot("board-more"), page.feed);
    showPeriods(slot, page.feed);
  });
  later(page, "events", () => showEvents(slot("events"), page.feed));
}

/** Shows a part of the page in a task of its own, with what is then known; once, however often it was asked for. */
function later(page, part, work) {
  if (page.waiting.has(part)) return;
  page.waiting.add(part);
  inOwnTask(() => {
    page.waiting.delete(part);
    if (!page.stopped && page.feed.phase === "known") work();
  });
}

function periodButtons(slot) {
  return slot("periods").querySelectorAll("button");
}

function hoursOf(button) {
  return button.dataset.hours ? Number(button.dataset.hours) : null;
}

/** Which period the leaderboard shows. A run that is over has no last 24 hours. */
function showPeriods(slot, feed) {
  slot("periods").hidden = isOver(feed);
  for (const button of periodButtons(slot)) button.setAttribute("aria-pressed", hoursOf(button) === (feed.hours ?? null));
  slot("contributors").textContent = contributorsText(feed);
}

function showSummary(slot, feed) {
  const [summary, heldOut] = [lossSummary(feed), heldOutText(feed)];
  if (summary) slot("loss-chart").setAttribute("aria-label", summary);
  slot("held-out").textContent = heldOut;
  slot("held-out").classList.toggle("hidden", !heldOut);
}

function showTiles(slot, feed) {
  const { run, state, at } = feed;
  for (const [name, text] of Object.entries(tilesOf(feed))) slot(name).textContent = text;
  for (const link of slot("sources").querySelectorAll("[data-live]")) link.href = new URL(`live/${link.dataset.live}.json`, at.base);
  slot("progress").max = run.total_epochs;
  slot("progress").value = state.epoch ?? 0;
}

/** Tile -> text. Of a run that is over: how many took part, and how fast it was, in place of what is so now. */
export function tilesOf(feed) {
  const { run, state } = feed;
  const over = isOver(feed);
  return {
    "active-label": over ? "Volunteers in all" : "Volunteers now",
    "speed-label": over ? "Samples per second (median)" : "Samples per second",
    "board-now": over ? "Took part" : "Now",
    title: run.title,
    epoch: state.epoch === null ? "–" : `${showCount(state.epoch)} of ${showCount(run.total_epochs)}`,
    loss: showNumber(state.loss),
    active: showCount(over ? feed.total || feed.volunteers.length : state.active_peers),
    speed: showNumber(over ? medianOf(feed.epochs.map((row) => row.samples_per_second)) : state.samples_per_second),
    samples: showCount(state.total_samples),
    parameters: run.parameters ? showCount(run.parameters) : "–",
  };
}

/** The median of the numbers among the values; null if there are none. */
function medianOf(values) {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  const middle = sorted.length / 2;
  return sorted.length ? (sorted[Math.ceil(middle) - 1] + sorted[Math.floor(middle)]) / 2 : null;
}
