// A figure's controls: native sliders, radio buttons and lists, read and written as the texts that Python knows.

/**
 * @typedef {object} Controls
 * @property {Map<string, HTMLElement[]>} inputs a control's inputs by its name; more than one of radio buttons
 * @property {Map<string, HTMLElement>} outputs where a control's value stands in words
 * @property {Map<string, string[]>} stops the texts of a slider whose own value is only their place
 * @property {Record<string, string>} defaults the values that the HTML has, whatever the reader has done since
 * @property {Record<string, string>} words the present values as the page says them
 */

/** @returns {Controls} */
export function makeControls(element) {
  const inputs = Map.groupBy(element.querySelectorAll("[data-control]"), (input) => input.dataset.control);
  const outputs = new Map([...element.querySelectorAll("[data-shown]")].map((output) => [output.dataset.shown, output]));
  const withStops = [...inputs].filter(([, [input]]) => input.dataset.stops);
  const controls = {
    inputs,
    outputs,
    stops: new Map(withStops.map(([name, [input]]) => [name, JSON.parse(input.dataset.stops)])),
    defaults: {},
    words: Object.fromEntries([...outputs].map(([name, output]) => [name, output.textContent])),
  };
  controls.defaults = valuesBy(controls, firstOf);
  return controls;
}

/** Control -> text, as `read` takes it from the control's inputs; a slider's place is told as what stands there. */
function valuesBy({ inputs, stops }, read) {
  return Object.fromEntries([...inputs].map(([name, group]) => [name, textAt(read(group), stops.get(name))]));
}

export function textAt(value, stops) {
  return stops?.[value] ?? value;
}

/** The other way round: where a slider stands for a text. One that is none of the stops is at the first. */
export function placeOf(text, stops) {
  return stops ? String(Math.max(0, stops.indexOf(text))) : text;
}

/** Control -> text, as the reader has set it. */
export function readControls(controls) {
  return valuesBy(controls, valueOf);
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

export function writeControls({ inputs, stops }, values) {
  for (const [name, group] of inputs) {
    const value = placeOf(values[name], stops.get(name));
    if (group[0].type === "radio") for (const radio of group) radio.checked = radio.value === value;
    else if (group[0].value !== value) group[0].value = value;
  }
}

/** The values' words, and ends that depend on other values. */
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

/** The slider of a control. */
export function sliderOf({ inputs }, name) {
  return inputs.get(name)[0];
}

/** A control's value in words; empty where the page says none. */
export function wordsFor({ words }, name) {
  return words[name] ?? "";
}
