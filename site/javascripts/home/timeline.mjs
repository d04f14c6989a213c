// The replay of a recorded run: shows the run at the time that the reader chooses, or plays it.

/** Seconds of the run in a second of playing: near a moment that the list tells of, and otherwise. */
const SLOW = 1.5;
const FAST = 20;
/** Playing is slow from BEFORE_SECONDS before such a moment until AFTER_SECONDS after it. */
const BEFORE_SECONDS = 2;
const AFTER_SECONDS = 4;

/**
 * @typedef {object} Timeline
 * @property {HTMLElement} figure
 * @property {HTMLInputElement} slider
 * @property {HTMLElement} play the button
 * @property {HTMLElement} strip the window in which the lanes scroll
 * @property {object} course the run, see course_of of site/builder/home/course.py
 * @property {number} at the shown time, in seconds
 * @property {number} left where the script has scrolled the lanes to; elsewhere the reader has
 * @property {number} frame the frame that playing waits for; 0: paused
 */

/** Starts the figure; returns what stops it. */
export function start(figure) {
  const slot = (name) => figure.querySelector(`[data-slot=${name}]`);
  const slider = figure.querySelector("input");
  const timeline = { figure, slider, play: slot("play"), strip: slot("window"), course: JSON.parse(figure.dataset.course), at: Number(slider.value), left: 0, frame: 0 };
  slider.addEventListener("input", () => goTo(timeline, Number(slider.value)));
  timeline.play.addEventListener("click", () => (timeline.frame ? pause(timeline) : run(timeline)));
  timeline.strip.addEventListener("scroll", () => onScroll(timeline));
  for (const link of figure.querySelectorAll("[data-at]")) link.addEventListener("click", (event) => onMoment(timeline, event));
  const wider = new ResizeObserver(() => show(timeline));
  wider.observe(timeline.strip);
  return () => {
    pause(timeline);
    wider.disconnect();
  };
}

function goTo(timeline, at) {
  pause(timeline);
  timeline.at = at;
  show(timeline);
}

function onMoment(timeline, event) {
  event.preventDefault();
  event.stopPropagation(); // the theme would open the link all the same, and replace the page
  goTo(timeline, Number(event.currentTarget.dataset.at));
}

/** Shows the time to which the reader has scrolled the lanes. */
function onScroll(timeline) {
  const { strip, course, left } = timeline;
  if (Math.abs(strip.scrollLeft - left) < 2) return;
  goTo(timeline, (course.seconds * strip.scrollLeft) / (strip.scrollWidth - strip.clientWidth));
}

/** Plays on from the shown time, or from the beginning if that is the end. */
function run(timeline) {
  if (timeline.at >= timeline.course.seconds) timeline.at = 0;
  timeline.play.textContent = "Pause";
  let last = performance.now();
  const step = (now) => {
    timeline.at = Math.min(timeline.at + (speedAt(timeline.at, timeline.course.moments) * (now - last)) / 1000, timeline.course.seconds);
    last = now;
    show(timeline);
    if (timeline.at < timeline.course.seconds) timeline.frame = requestAnimationFrame(step);
    else pause(timeline);
  };
  timeline.frame = requestAnimationFrame(step);
}

function pause(timeline) {
  cancelAnimationFrame(timeline.frame);
  timeline.frame = 0;
  timeline.play.textContent = "Play";
}

/** How fast playing is at a time. */
export function speedAt(at, moments) {
  return moments.some((moment) => at > moment - BEFORE_SECONDS && at < moment + AFTER_SECONDS) ? SLOW : FAST;
}

function show(timeline) {
  const { figure, slider, strip, course, at } = timeline;
  const slot = (name) => figure.querySelector(`[data-slot=${name}]`);
  const update = lastBefore(course.epochs, at, (epoch) => epoch.at);
  slider.value = at;
  slot("time").textContent = `${clock(at)} of ${clock(course.seconds)}`;
  slot("state").textContent = stateText(update);
  slider.ariaValueText = `${clock(at)}. ${stateText(update)}`;
  figure.querySelectorAll("[data-slot=brought]").forEach((output, place) => (output.textContent = update?.samples[place] ?? "–"));
  const drawn = lastBefore(course.snapshots.map((seconds, place) => ({ seconds, place })), at, (one) => one.seconds);
  [...slot("film").children].forEach((frame, place) => frame.classList.toggle("now", place === (drawn?.place ?? -1)));
  for (const link of figure.querySelectorAll("[data-at]")) link.parentElement.classList.toggle("done", Number(link.dataset.at) <= at);
  figure.style.setProperty("--at", at / course.seconds);
  timeline.left = Math.round((strip.scrollWidth - strip.clientWidth) * (at / course.seconds));
  strip.scrollLeft = timeline.left;
}

/** The last of the items, which are in the order of their times, that is not after a time; undefined if none is. */
export function lastBefore(items, at, timeOf) {
  return items.findLast((item) => timeOf(item) <= at);
}

/** The last epoch that is done, in words. */
export function stateText(update) {
  if (!update) return "No epoch is done yet";
  const by = update.together > 1 ? `by ${update.together} volunteers` : "by one volunteer alone";
  return `Epoch ${update.epoch}${update.loss === null ? "" : `, loss ${Number(update.loss.toPrecision(2))}`}, ${by}`;
}

/** 125.9 -> "2:05". */
export function clock(seconds) {
  return `${Math.floor(seconds / 60)}:${String(Math.floor(seconds) % 60).padStart(2, "0")}`;
}
