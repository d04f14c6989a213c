// Shows the definition of a glossary term beside the word: by pointer, by keyboard, and by touch, where the first tap
// shows the definition and the second follows the link. Without this script a term is a link with the definition as
// title.

const LEFT_AFTER_MS = 200;
const GAP = 6;

/** The one box for all definitions; created when first needed. */
let tip = null;
/** The term whose definition is shown. */
let opened = null;
/** Timer that closes the definition after the pointer has left. */
let leaving = 0;
/** Whether the last press on the page was by touch. */
let touched = false;

const termAt = (target) => target?.closest?.("a.term") ?? null;

export function startTerms() {
  document.addEventListener("pointerover", onPointerOver);
  document.addEventListener("pointerdown", onPointerDown);
  document.addEventListener("focusin", onFocus);
  document.addEventListener("focusout", close);
  document.addEventListener("keydown", ({ key }) => key === "Escape" && close());
  document.addEventListener("scroll", onScroll, { passive: true, capture: true });
  // In the capture phase, so that it runs before the theme's listener, which would follow the link.
  document.addEventListener("click", onClick, { capture: true });
}

function onPointerOver({ target, pointerType }) {
  if (pointerType === "touch") return;
  if (termAt(target)) open(termAt(target));
  else if (tip?.contains(target)) clearTimeout(leaving);
  else if (opened && document.activeElement !== opened) {
    clearTimeout(leaving);
    leaving = setTimeout(close, LEFT_AFTER_MS);
  }
}

function onPointerDown({ target, pointerType }) {
  touched = pointerType === "touch";
  if (opened && !termAt(target) && !tip.contains(target)) close();
}

function onFocus({ target }) {
  if (!termAt(target)) close();
  else if (target.matches(":focus-visible")) open(target);
}

/** Closes the definition, except that of the term with the focus: moving the focus there may have scrolled the page. */
function onScroll() {
  if (!opened) return;
  if (document.activeElement === opened) place(opened);
  else close();
}

function onClick(event) {
  const term = termAt(event.target);
  if (!term || !touched || term === opened) return;
  event.preventDefault();
  event.stopPropagation();
  open(term);
}

function open(term) {
  clearTimeout(leaving);
  if (term === opened) return;
  close();
  if (term.title) {
    term.dataset.meaning = term.title;
    term.removeAttribute("title"); // otherwise the browser would show its own tooltip as well
  }
  tip ??= made();
  tip.textContent = term.dataset.meaning;
  document.querySelector("main").append(tip);
  tip.hidden = false;
  term.setAttribute("aria-describedby", tip.id);
  place(term);
  opened = term;
}

function close() {
  clearTimeout(leaving);
  if (!opened) return;
  opened.removeAttribute("aria-describedby");
  opened = null;
  tip.hidden = true;
}

function made() {
  const element = document.createElement("div");
  element.id = "term-tip";
  element.className = "term-tip";
  element.role = "tooltip";
  return element;
}

/** Places the box below the term, or above it if there is no room below; never beyond the window's sides. */
function place(term) {
  const word = term.getClientRects()[0];
  const { width, height } = tip.getBoundingClientRect();
  const below = word.bottom + GAP + height < innerHeight;
  const left = Math.min(Math.max(GAP, word.left), document.documentElement.clientWidth - width - GAP);
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? word.bottom + GAP : word.top - GAP - height}px`;
}
