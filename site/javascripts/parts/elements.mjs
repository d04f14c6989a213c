// Creates elements.

/** An element with children: nodes, or texts, which are never interpreted as HTML. */
export function element(tag, children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}

/** A table's heading; `scope` is "col" or "row". */
export function heading(text, scope) {
  const cell = element("th", [text]);
  cell.scope = scope;
  return cell;
}
