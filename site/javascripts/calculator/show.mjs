// Puts an answer into the page: texts into their places, lengths into bars, instants into the timeline. What has not
// changed is not touched: an answer is shown within a part of a frame.

import { setCommand } from "../listing.mjs";

/**
 * @param {HTMLElement} root the calculator
 * @param {AbortSignal} ended when its page goes
 */
export function makeShow(root, ended) {
  const places = new Map([...root.querySelectorAll("[data-slot]")].map((place) => [place.dataset.slot, place]));
  const bars = [...root.querySelectorAll("[data-bar]")].map((bar) => [...bar.querySelectorAll("span")]);
  const slot = (name) => places.get(name);
  const table = slot("timeline").closest("details");
  const advised = slot("choices").closest(".advice");
  const written = new Map();
  const long = bars.map(() => []);
  let { standing } = slot("standing").dataset;
  let drawn = [];
  let listed = null;

  /** Only what is new is looked up in the document: most of an answer is as it was. */
  function write(name, text) {
    if (written.get(name) === text) return;
    written.set(name, text);
    const place = slot(name);
    const only = place.childNodes.length === 1 && place.firstChild;
    if (only?.nodeType === Node.TEXT_NODE) only.data = text;
    else place.textContent = text;
  }

  function show(answer) {
    const { command, ...texts } = answer.texts;
    for (const [name, text] of Object.entries(texts)) write(name, text);
    setCommand(slot("command"), command);
    for (const [name, text] of Object.entries(answer.why)) write(`why-${name}`, text);
    for (const place of ["gpu-total", "bar-total"]) write(place, answer.texts.total);
    write("bar-plain", answer.texts["plain-total"]);
    drawBars(answer);
    if (standing !== answer.standing) {
      standing = answer.standing;
      // Beside the verdict's look, how much room the advice gets, which comes later: what was advised before says nothing.
      slot("standing").dataset.standing = advised.dataset.standing = standing;
      slot("choices").replaceChildren();
    }
    slot("bars").ariaLabel = answer.bars_label;
    slot("on-host").hidden = !answer.on_host;
    slot("not-on-host").hidden = answer.on_host;
    drawStep(answer.timeline);
    if (table.open) listStep(answer.timeline);
    advised.inert = true;
    slot("step").ariaLabel = stepLabel(answer);
  }

  function drawBars({ bars: lengths, limit }) {
    bars.forEach((pieces, bar) =>
      pieces.forEach((piece, part) => {
        const length = lengths[bar][part];
        if (long[bar][part] === length) return;
        long[bar][part] = length;
        piece.style.flexBasis = `${length}%`;
      }),
    );
    slot("limit").hidden = limit === null;
    slot("limit").style.left = `${limit ?? 0}%`;
  }

  function drawStep(timeline) {
    const columns = slot("step");
    fit(columns, timeline.length, () => document.createElement("span"));
    timeline.forEach((row, index) => {
      const before = drawn[index];
      const column = columns.children[index];
      if (before?.percent !== row.percent) column.style.height = `${row.percent}%`;
      if (before?.phase !== row.phase) column.dataset.phase = row.phase;
      if (before?.peak !== row.peak) column.dataset.peak = row.peak;
    });
    drawn = timeline;
  }

  /** The table has hundreds of cells: it is filled when it is seen. */
  function listStep(timeline) {
    if (listed === timeline) return;
    listed = timeline;
    fit(slot("timeline"), timeline.length, instantRow);
    timeline.forEach((row, index) => {
      const line = slot("timeline").rows[index];
      line.dataset.peak = row.peak;
      [row.phase, row.peak ? `${row.place} (the peak)` : row.place, row.bytes].forEach((text, cell) => {
        if (line.cells[cell].textContent !== text) line.cells[cell].textContent = text;
      });
    });
  }

  table.addEventListener("toggle", () => table.open && drawn.length && listStep(drawn));
  // Paper has it unfolded.
  addEventListener("beforeprint", () => drawn.length && listStep(drawn), { signal: ended });

  /** One button for each thing that the reader could do. Those for the setup before have no effect until then. */
  function advise(advice) {
    advised.inert = false;
    write("advice", advice.error ?? advice.sentence);
    const lines = (advice.choices ?? []).map(({ text, changes }) => {
      const line = document.createElement("li");
      const button = document.createElement("button");
      button.type = "button";
      button.className = "small";
      button.dataset.changes = JSON.stringify(changes);
      button.ariaLabel = `Set it: ${text}`;
      button.textContent = "Set it";
      line.append(`${text} `, button);
      return line;
    });
    slot("choices").replaceChildren(...lines);
  }

  return { slot, show, advise };
}

/** The same words as in the template. */
function stepLabel(answer) {
  const peak = answer.timeline.find((row) => row.peak);
  return `Memory held during the step, in ${answer.timeline.length} stretches; the peak is in ${peak.phase}, ${peak.place}: ${peak.bytes}`;
}

function fit(parent, count, make) {
  while (parent.children.length > count) parent.lastElementChild.remove();
  while (parent.children.length < count) parent.append(make());
}

function instantRow() {
  const line = document.createElement("tr");
  for (let cell = 0; cell < 3; cell++) line.insertCell();
  return line;
}
