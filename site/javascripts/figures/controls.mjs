// A figure's controls: native sliders, radio buttons and lists, read and written as the texts that Python expects.

/**
 * @typedef {object} Controls
 * @property {Map<string, HTMLElement[]>} inputs control -> its inputs; only radio buttons have more than one
 * @property {Map<string, HTMLElement>} outputs control -> the element that shows its value in words
 * @property {Map<string, string[]>} stops control -> its texts, for a slider whose own value is an index into them
 * @property {HTMLElement[]} dependent the boxes of controls that matter only with one value of another control
 * @property {Record<string, string>} defaults the values in the HTML
 * @property {Record<string, string>} words the current values in words
 */

/** @returns {Controls} */
export function makeControls(element) {
  const inputs = Map.groupBy(element.querySelectorAll("[data-control]"), (input) => input.dataset.control);
  const outputs = new Map([...element.querySelectorAll("[data-shown]")].map((output) => [output.dataset.shown, output]));
  const withStops = [...inputs].filter(([, [input]]) => input.dataset.stops);
  const controls = {
    inputs,
    outputs,
    dependent: [...element.querySelectorAll("[data-needs]")],
    stops: new Map(withStops.map(([name, [input]]) => [name, JSON.parse(input.dataset.stops)])),
    defaults: {},
    words: Object.fromEntries([...outputs].map(([name, output]) => [name, output.textContent])),
  };
  controls.defaults = valuesBy(controls, firstOf);
  return controls;
}

/** Control -> text. `read` gets the inputs' own value, which for a slider with stops is an index into their texts. */
function valuesBy({ inputs, stops }, read) {
  return Object.fromEntries([...inputs].map(([name, group]) => [name, textAt(read(group), stops.get(name))]));
}

/** The text for a slider's value; the value itself if the slider has no stops. */
export function textAt(value, stops) {
  return stops?.[value] ?? value;
}

/** A slider's value for a text; the first stop for an unknown text. */
export function placeOf(text, stops) {
  return stops ? String(Math.max(0, stops.indexOf(text))) : text;
}

/** Control -> text, as it is set now. */
export function readControls(controls) {
  return valuesBy(controls, valueOf);
}

/** Whether a control matters with these values; `needs` is "control=value". */
export function isNeeded(needs, values) {
  const [name, value] = needs.split("=");
  return values[name] === value;
}

/** Hides the controls that do not matter with the current values. */
export function hideUnused(controls) {
  const values = readControls(controls);
  for (const box of controls.dependent) box.hidden = !isNeeded(box.dataset.needs, values);
}

function valueOf(group) {
  if (group[0].type === "radio") return group.find((radio) => radio.checked)?.value ?? "";
  return group[0].value;
}

function firstOf(group) {
  const [input] = group;
  if (input.type === "radio") return group.find((radio) => radio.defaultChecked).value;
  return input.tagName === "SELECT" ? [...input.options].find((option) => option.defaultSelected).value : input.defaultValue;
}

export function writeControls(controls, values) {
  const { inputs, stops } = controls;
  for (const [name, group] of inputs) {
    const value = placeOf(values[name], stops.get(name));
    if (group[0].type === "radio") for (const radio of group) radio.checked = radio.value === value;
    else if (group[0].value !== value) group[0].value = value;
  }
  hideUnused(controls);
}

/** Shows the values in words, and sets the sliders' ends that depend on other values. */
export function showValues(controls, { shown, limits }) {
  controls.words = shown;
  for (const [name, output] of controls.outputs) {
    const input = sliderOf(controls, name);
    if (name in limits) input.max = limits[name];
    if (output.textContent === shown[name]) continue;
    output.textContent = shown[name];
    input.setAttribute("aria-valuetext", shown[name]);
  }
}

/** A control's slider. */
export function sliderOf({ inputs }, name) {
  return inputs.get(name)[0];
}

/** A control's value in words; empty if the page does not show it. */
export function wordsFor({ words }, name) {
  return words[name] ?? "";
}
