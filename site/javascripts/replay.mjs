// The replay of attacked runs: shows their curves, losses and events up to the update that the reader chooses.

const STEP_MS = 90;

/** Starts the figure; returns what stops it. */
export function start(figure) {
  const slider = figure.querySelector("input");
  const play = figure.querySelector("[data-slot=play]");
  const replay = { figure, slider, play, losses: JSON.parse(figure.dataset.losses), timer: 0 };
  slider.addEventListener("input", () => {
    pause(replay);
    show(replay);
  });
  play.addEventListener("click", () => (replay.timer ? pause(replay) : run(replay)));
  show(replay);
  return () => pause(replay);
}

/** Goes on from the chosen update, or from the first one if the last one is shown. */
function run(replay) {
  const { slider, play } = replay;
  if (slider.value === slider.max) slider.value = slider.min;
  play.textContent = "Pause";
  const first = Number(slider.value);
  const began = performance.now();
  replay.timer = setInterval(() => {
    // By the clock: a slow device leaves updates out.
    slider.value = first + Math.floor((performance.now() - began) / STEP_MS);
    show(replay);
    if (slider.value === slider.max) pause(replay);
  }, STEP_MS);
  show(replay);
}

function pause(replay) {
  clearInterval(replay.timer);
  replay.timer = 0;
  replay.play.textContent = "Play";
}

function show({ figure, slider, losses }) {
  const update = Number(slider.value);
  const last = Number(slider.max);
  slider.ariaValueText = `update ${update} of ${last}`;
  figure.querySelector("[data-slot=update]").textContent = `${update} of ${last}`;
  for (const curves of figure.querySelectorAll(".replay__curves")) {
    curves.style.clipPath = `inset(0 ${100 - placeOf(update, last, curves.dataset)}% 0 0)`;
  }
  for (const [name, values] of Object.entries(losses)) {
    figure.querySelector(`[data-run="${name}"]`).textContent = values[update - 1].toFixed(2);
  }
  for (const step of figure.querySelectorAll("[data-update]")) {
    step.classList.toggle("later", Number(step.dataset.update) > update);
  }
}

/** Where an update is across the drawing, in percent of its width; the line's own width is still shown. */
export function placeOf(update, last, { from, to }) {
  return Number(from) + ((update - 1) / (last - 1)) * (to - from) + 0.3;
}
