// A command as it wraps: between words only, whatever hyphens and slashes they have. The same as
// site/builder/markup/listings.py makes of the commands that stand in the HTML.

/** Words that stay are not touched: commands mostly differ by a few. */
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
