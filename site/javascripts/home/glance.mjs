// The summary of a run on the home page.

import { element } from "../parts/elements.mjs";
import { describe, isOver } from "../runs/feed.mjs";
import { showCount, showNumber } from "../parts/format.mjs";
import { followRun } from "../runs/live.mjs";

const MOST_PICTURES = 4;

export function start(root) {
  const slot = (name) => root.querySelector(`[data-slot="${name}"]`);
  const quiet = { kind: "none", label: slot("now-label").textContent, text: slot("now-text").textContent };
  return followRun((feed) => show(slot, feed, quiet), { documents: ["leaderboard", "pictures"] });
}

/** Brings the page up to date; `quiet` is what it says while no run is live. */
function show(slot, feed, quiet) {
  if (feed.at?.key && feed.phase !== "known") showUnknown(slot, feed.at);
  if (feed.phase === "loading" || (!feed.changed && !feed.lost)) return;
  const { kind, label, text } = describe(feed);
  slot("status").dataset.kind = kind;
  slot("status-label").textContent = label;
  slot("status-text").textContent = text;
  const known = feed.phase === "known";
  // While nobody answers, a recorded run that stands in the page itself stays.
  if (feed.phase !== "unreachable") for (const name of ["numbers", "key"]) slot(name).classList.toggle("hidden", !known);
  slot("hint").classList.toggle("hidden", feed.phase !== "none");
  showNow(slot, feed, quiet);
  if (known) showRun(slot, feed);
}

/** Says at the top of the page whether a run is live; if one is, the first door leads to it. */
function showNow(slot, feed, quiet) {
  const isQuiet = (feed.phase === "none" && !feed.at?.key) || (feed.phase === "known" && isOver(feed));
  const isLive = feed.phase === "known" && !isOver(feed);
  slot("door-demo").hidden = isLive;
  slot("door-join").hidden = !isLive;
  const { kind, label, text } = isQuiet ? quiet : describe(feed);
  slot("now").dataset.kind = kind;
  slot("now-label").textContent = label;
  slot("now-text").textContent = isLive ? `${feed.run.title}. ${text}` : text;
}

/** Shows the name of another run, of which nothing is known yet, in place of the recorded run in the page. */
function showUnknown(slot, run) {
  slot("title").textContent = run.title;
  for (const name of ["curve", "pictures"]) slot(name).replaceChildren();
  for (const name of ["numbers", "key"]) slot(name).classList.add("hidden");
}

function showRun(slot, feed) {
  const { run, state, epochs, total, snapshots } = feed;
  slot("title").textContent = run.title;
  slot("loss").textContent = showNumber(state.loss);
  slot("active").textContent = showCount(isOver(feed) ? total : state.active_peers);
  slot("samples").textContent = showCount(state.total_samples);
  const points = epochs.filter((row) => row.loss !== null).map((row) => [row.epoch, row.loss]);
  const peers = epochs.map((row) => [row.epoch, row.active_peers]);
  slot("curve").replaceChildren(...(points.length > 1 ? [curve(points, peers)] : []));
  slot("pictures").replaceChildren(...(snapshots.at(-1)?.pictures ?? []).slice(0, MOST_PICTURES).map(drawn));
}

function drawn({ file, prompt, text }) {
  if (!file) return element("figure", [element("figcaption", [`${prompt}${text}`])]);
  const image = document.createElement("img");
  image.src = file;
  image.alt = `Drawn by the model: “${prompt}”`;
  image.width = image.height = 72;
  return element("figure", [image, element("figcaption", [prompt])]);
}

/**
 * Loss, and volunteers below it, as a picture of 300 x 102; the same as `spark_svg` of
 * site/builder/dashboard/curves.py.
 */
function curve(points, peers) {
  const { loss, people, label } = curvePaths(points, peers);
  const svg = svgElement("svg", { viewBox: "0 0 300 102", role: "img", "aria-label": label });
  svg.append(svgElement("polyline", { points: loss }), svgElement("path", { class: "people", d: people }));
  return svg;
}

function svgElement(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/**
 * The loss as the points of a polyline, the volunteers as an SVG path, and a label with both in words.
 *
 * @param {number[][]} points [epoch, loss], the oldest first
 * @param {number[][]} peers [epoch, number of volunteers]
 */
export function curvePaths(points, peers) {
  const [xs, ys] = [points.map((point) => point[0]), points.map((point) => point[1])];
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const most = Math.max(...peers.map(([, count]) => count)) || 1;
  const across = (x) => (4 + (292 * (x - left)) / (right - left || 1)).toFixed(1);
  const loss = points.map(([x, y]) => `${across(x)},${(76 - (72 * (y - low)) / (high - low || 1)).toFixed(1)}`);
  const steps = peers.filter(([x]) => x >= left).map(([x, count]) => `L${across(x)},${(100 - (12 * count) / most).toFixed(1)}`);
  return {
    loss: loss.join(" "),
    people: `M4,100${steps.join("")}L296,100Z`,
    label: `Loss from ${showNumber(ys[0])} at epoch ${left} to ${showNumber(ys.at(-1))} at epoch ${right}; below, how many volunteers trained: at most ${most}`,
  };
}
