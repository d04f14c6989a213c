// Shows a command so that lines break only between its words. Browsers also break lines at hyphens and slashes, so each
// word with one is wrapped in a span. site/builder/markup/listings.py does the same with the commands in the HTML.

/** Shows a command. It changes only the words that differ, because this runs at each answer. */
export function setCommand(place, text) {
  let line = place.firstElementChild;
  if (place.childNodes.length !== 1 || !line?.matches(".line")) {
    line = document.createElement("span");
    line.className = "line";
    place.replaceChildren(line);
  }
  const pieces = text.split(/(\s+)/);
  pieces.forEach((piece, index) => {
    const there = line.childNodes[index];
    const whole = /[-/]/.test(piece);
    if (there && (there.nodeType === Node.ELEMENT_NODE) === whole) {
      if (there.textContent !== piece) there.textContent = piece;
      return;
    }
    const made = whole ? document.createElement("span") : document.createTextNode("");
    if (whole) made.className = "word";
    made.textContent = piece;
    if (there) there.replaceWith(made);
    else line.append(made);
  });
  while (line.childNodes.length > pieces.length) line.lastChild.remove();
}
