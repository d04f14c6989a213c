// The buttons that choose which epochs the charts show: the whole run, or only the last ones.

import { showCount } from "../parts/format.mjs";

/** Makes the buttons change the view (see chart.mjs). `onView` is called after a change. */
export function startViews(buttons, view, onView) {
  for (const button of buttons.children) {
    button.addEventListener("click", () => {
      Object.assign(view, { last: Number(button.dataset.last) || null, range: null });
      onView();
    });
  }
}

/** Brings the buttons up to date; a run that is too short for a button does not have it. */
export function showViews(buttons, { last, range }, epochs) {
  const length = epochs.length ? epochs.at(-1).epoch - epochs[0].epoch : 0;
  for (const button of buttons.children) {
    const own = Number(button.dataset.last) || null;
    button.hidden = own !== null && own >= length;
    if (own !== null) button.textContent = `Last ${showCount(own)} epochs`;
    button.setAttribute("aria-pressed", !range && own === last);
  }
  const isShort = [...buttons.children].slice(1).every((button) => button.hidden);
  buttons.hidden = isShort && !range;
}
