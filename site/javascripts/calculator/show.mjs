// Puts an answer into the page: texts into their places, lengths into bars, instants into the timeline.

export function makeShow(root) {
  const places = new Map([...root.querySelectorAll("[data-slot]")].map((place) => [place.dataset.slot, place]));
  const bars = [...root.querySelectorAll("[data-bar]")].map((bar) => [...bar.querySelectorAll("span")]);
  const slot = (name) => places.get(name);

  function write(name, text) {
    const place = slot(name);
    if (place.textContent !== text) place.textContent = text;
  }

  function show(answer) {
    for (const [name, text] of Object.entries(answer.texts)) write(name, text);
    for (const [name, text] of Object.entries(answer.why)) write(`why-${name}`, text);
    write("gpu-total", answer.texts.total);
    bars.forEach((pieces, bar) => pieces.forEach((piece, part) => (piece.style.flexBasis = `${answer.bars[bar][part]}%`)));
    slot("limit").hidden = answer.limit === null;
    slot("limit").style.left = `${answer.limit ?? 0}%`;
    slot("verdict").dataset.standing = answer.standing;
    slot("bars").ariaLabel = answer.bars_label;
    fit(slot("step"), answer.timeline.length, () => document.createElement("span"));
    fit(slot("timeline"), answer.timeline.length, instantRow);
    answer.timeline.forEach((row, index) => {
      const column = slot("step").children[index];
      column.style.height = `${row.percent}%`;
      column.dataset.phase = row.phase;
      column.dataset.peak = row.peak;
      const line = slot("timeline").rows[index];
      line.dataset.peak = row.peak;
      [row.phase, row.peak ? `${row.place} (the peak)` : row.place, row.bytes].forEach((text, cell) => {
        if (line.cells[cell].textContent !== text) line.cells[cell].textContent = text;
      });
    });
    slot("step").ariaLabel = stepLabel(answer);
  }

  /** One button for each thing that the reader could do. */
  function advise(advice) {
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
