// The handles in a drawing that readers can drag. A handle moves the sliders of one or two controls, by pointer, touch
// and arrow keys. The sliders' input events then update the figure.

/**
 * @typedef {object} Handle a handle in Python's answer
 * @property {string} label
 * @property {number} left in percent of the drawing's width
 * @property {number} top in percent of the drawing's height
 * @property {Direction | null} x what dragging sideways changes
 * @property {Direction | null} y what dragging up and down changes
 *
 * @typedef {object} Direction
 * @property {string} control
 * @property {number[]} ends the slider's values at the drawing's left and right edges, or at its top and bottom
 *
 * @typedef {object} Handles
 * @property {HTMLElement} stage contains the handles
 * @property {object} controls slider(name) -> input, words(name) -> its value in words
 * @property {Handle[]} told the handles of the last answer
 */

/** @returns {Handles} */
export function makeHandles(stage, controls) {
  const handles = { stage, controls, told: JSON.parse(stage.dataset.handles) };
  [...stage.children].forEach((element, index) => {
    prepare(handles, element, index);
    describe(handles, element, handles.told[index]);
  });
  return handles;
}

export function showHandles(handles, told) {
  const { stage } = handles;
  handles.told = told;
  while (stage.children.length > told.length) stage.lastElementChild.remove();
  while (stage.children.length < told.length) stage.append(made(handles, stage.children.length));
  told.forEach((handle, index) => {
    place(stage.children[index], handle);
    describe(handles, stage.children[index], handle);
  });
}

function made(handles, index) {
  const element = document.createElement("div");
  element.className = "handle";
  prepare(handles, element, index);
  return element;
}

function prepare(handles, element, index) {
  element.setAttribute("role", "slider");
  element.tabIndex = 0;
  element.addEventListener("pointerdown", (event) => {
    if (!handles.told[index]) return;
    element.setPointerCapture(event.pointerId);
    element.focus({ preventScroll: true });
    event.preventDefault();
  });
  element.addEventListener("pointermove", (event) => element.hasPointerCapture(event.pointerId) && drag(handles, index, event));
  element.addEventListener("keydown", (event) => handles.told[index] && onKey(handles, index, event));
}

function place(element, { left, top }) {
  for (const width of ["", "narrow-"]) {
    element.style.setProperty(`--${width}left`, `${left}%`);
    element.style.setProperty(`--${width}top`, `${top}%`);
  }
}

/** Sets a handle's name, value and range for screen readers. */
function describe({ controls }, element, { label, x, y }) {
  const slider = controls.slider((x ?? y).control);
  element.ariaLabel = label;
  element.ariaValueNow = slider.value;
  element.ariaValueMin = slider.min;
  element.ariaValueMax = slider.max;
  element.ariaValueText = [x, y].filter(Boolean).map(({ control }) => controls.words(control) || slider.value).join(", ");
  if (!x) element.ariaOrientation = "vertical";
}

/** Sets a slider and sends the event that a reader's move would send. */
function set({ controls }, name, value) {
  const slider = controls.slider(name);
  const before = slider.value;
  slider.value = value;
  if (slider.value !== before) slider.dispatchEvent(new Event("input", { bubbles: true }));
}

function drag(handles, index, event) {
  const { left, top, width, height } = handles.stage.parentElement.getBoundingClientRect();
  const { x, y } = handles.told[index];
  if (x) set(handles, x.control, between(x.ends, (event.clientX - left) / width));
  if (y) set(handles, y.control, between(y.ends, (event.clientY - top) / height));
}

/** The value at a share of the way between two ends, limited to the ends. */
export function between([start, end], share) {
  return start + Math.min(1, Math.max(0, share)) * (end - start);
}

function onKey(handles, index, event) {
  const move = moveBy(handles.told[index], event.key);
  if (!move) return;
  event.preventDefault();
  const slider = handles.controls.slider(move.control);
  set(handles, move.control, Number(slider.value) + move.steps * Number(slider.step || 1));
}

const SIDEWAYS = { ArrowLeft: -1, ArrowRight: 1, Home: -1e6, End: 1e6 };
const UPWARDS = { ArrowUp: 1, ArrowDown: -1, PageUp: 10, PageDown: -10 };

/**
 * What a key does to a handle: {control, steps}, or null. Arrows move the handle in the direction in which they point.
 * On a handle with one direction, both pairs of arrows move it. A million steps reach the end of every slider.
 */
export function moveBy({ x, y }, key) {
  const isSideways = key in SIDEWAYS;
  if (!isSideways && !(key in UPWARDS)) return null;
  const moved = isSideways ? (x ?? y) : (y ?? x);
  const isUpright = moved === y;
  const rises = isUpright ? moved.ends[0] >= moved.ends[1] : moved.ends[1] >= moved.ends[0];
  // Left and right on a handle that only moves up and down act as on its slider, whose values grow to the right.
  const sense = (isUpright && isSideways) || rises ? 1 : -1;
  return { control: moved.control, steps: sense * (SIDEWAYS[key] ?? UPWARDS[key]) };
}
