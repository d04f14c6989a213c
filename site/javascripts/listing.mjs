// A command as it wraps: between words only, whatever hyphens and slashes they have. The same as site/builder/listings.py
// makes of the commands that stand in the HTML.

export function setCommand(place, text) {
  if (place.textContent === text) return;
  const line = document.createElement("span");
  line.className = "line";
  for (const piece of text.split(/(\s+)/)) {
    if (!/[-/]/.test(piece)) line.append(piece);
    else {
      const word = document.createElement("span");
      word.className = "word";
      word.textContent = piece;
      line.append(word);
    }
  }
  place.replaceChildren(line);
}
