// What the model has drawn or written, as a table: a row for each prompt, a column for each epoch, the newest first.

import { element, heading } from "../parts/elements.mjs";
import { showCount } from "../parts/format.mjs";
import { nextFrame } from "../parts/pieces.mjs";

/** Column widths of the table in pixels. The style sheet makes both narrower on phones, where two columns fit. */
const PROMPT_WIDTH = 120;
const PICTURE_WIDTH = 130;
const TEXT_WIDTH = 260;
/** Rows with together so many pictures are made in one task and laid out in one frame, or else one row. */
const PIECE = 80;
/** Of more epochs so many are shown, evenly spread: a change of colours styles each picture anew, in one task. */
const MOST_EPOCHS = 30;

const DRAWN = "The same prompts, drawn again as the run goes on; the newest epoch comes first.";
const DRAWN_JUDGED =
  " A tick means that the shape or colour matches the prompt, judged by a rule that looks at the pixels; stray objects count as wrong.";
const NONE = "No pictures yet: the first ones come with the first checkpoint.";
const WRITTEN = "The same prompts, continued again as the run goes on; the newest epoch comes first.";
const WRITTEN_JUDGED =
  " This project’s own stories are made by rules. A tick means that the text follows these rules to an ending, and says nothing that contradicts what came before.";

/**
 * Fills the table with as many epochs as fit, or with more if the reader has pressed the button.
 *
 * @param {(name: string) => HTMLElement} slot
 * @param {object[]} snapshots {epoch, pictures: [{prompt, file, shape, colour} or {prompt, text, good}]}, the oldest first
 */
export function showPictures(slot, snapshots) {
  const table = slot("pictures");
  const writes = areTexts(snapshots);
  const room = columnsIn(table.closest(".scroll").clientWidth, writes ? TEXT_WIDTH : PICTURE_WIDTH);
  const chosen = chosenOf(snapshots, showsMore(slot("pictures-all"), snapshots.length, room, writes) ? MOST_EPOCHS : room);
  // Filling the table with the same pictures again would make the browser decode them again.
  const state = JSON.stringify(chosen.map(({ epoch }) => epoch));
  if (table.dataset.state === state) return;
  table.dataset.state = state;
  slot("pictures-title").textContent = writes ? "Texts it writes" : "Pictures it draws";
  slot("pictures-text").textContent = chosen.length ? explained(writes, areJudged(snapshots)) : NONE;
  table.classList.toggle("gallery--texts", writes);
  table.replaceChildren(...(chosen.length ? [head(chosen), body(chosen)] : []));
}

/** Whether a run's model writes; otherwise it draws. */
export function areTexts(snapshots) {
  return snapshots.some(({ pictures }) => pictures.some((one) => "text" in one));
}

function explained(writes, judged) {
  return writes ? WRITTEN + (judged ? WRITTEN_JUDGED : "") : DRAWN + (judged ? DRAWN_JUDGED : "");
}

/** Whether any has a mark: only what the project's own demos learn to draw or to write can be judged. */
function areJudged(snapshots) {
  return snapshots.some(({ pictures }) => pictures.some((one) => ("text" in one ? one.good !== null : judged(one).length)));
}

/** Number of epochs that fit into a table of this width. */
export function columnsIn(width, column = PICTURE_WIDTH) {
  return Math.max(2, Math.floor((width - PROMPT_WIDTH) / column));
}

/** At most `most` of the snapshots, evenly spread, with the first and the last; the newest first. */
export function chosenOf(snapshots, most) {
  return spread(snapshots, most).reverse();
}

function spread(list, most) {
  if (list.length <= most) return [...list];
  return Array.from({ length: most }, (_, place) => list[Math.round((place * (list.length - 1)) / (most - 1))]);
}

/** Updates the button that shows all epochs, or many of them; returns whether it is pressed. */
function showsMore(button, count, room, writes) {
  button.hidden = count <= room;
  button.textContent = `${writes ? "Texts" : "Pictures"} of ${epochsTold(count)}`;
  return button.getAttribute("aria-pressed") === "true";
}

/** How many epochs the table has if the reader wants more than fit. */
export function epochsTold(count) {
  return count > MOST_EPOCHS ? `${MOST_EPOCHS} of ${showCount(count)} epochs` : `all ${count} epochs`;
}

function head(snapshots) {
  return element("thead", [element("tr", [heading("Prompt", "col"), ...snapshots.map(({ epoch }) => heading(`epoch ${epoch}`, "col"))])]);
}

/** The table's body, whose rows come piece by piece: all epochs of a long run have thousands of pictures. */
function body(snapshots) {
  const prompts = [...new Set(snapshots.flatMap(({ pictures }) => pictures.map(({ prompt }) => prompt)))];
  const rows = element("tbody", []);
  addRows(rows, prompts, snapshots);
  return rows;
}

async function addRows(rows, prompts, snapshots) {
  const together = Math.max(1, Math.floor(PIECE / snapshots.length));
  for (let first = 0; first < prompts.length; first += together) {
    if (first) await nextFrame();
    if (first && !rows.isConnected) return;
    rows.append(...prompts.slice(first, first + together).map((prompt) => row(prompt, snapshots)));
  }
}

function row(prompt, snapshots) {
  return element("tr", [heading(prompt, "row"), ...snapshots.map((snapshot) => cell(snapshot, prompt))]);
}

function cell({ epoch, pictures }, prompt) {
  const mine = pictures.filter((picture) => picture.prompt === prompt);
  return element("td", mine.flatMap((one) => ("text" in one ? written(one) : drawn(one, epoch))));
}

function written({ text, good }) {
  const words = element("p", [text.trim() || "(nothing)"]);
  words.dir = "auto";
  return good === null ? [words] : [words, verdict(good ? "✓ right" : "✗ wrong")];
}

function drawn(picture, epoch) {
  const image = element("img", []);
  image.src = picture.file;
  image.width = image.height = 96;
  image.loading = "lazy";
  image.alt = altOf(picture, epoch);
  const marks = marksOf(picture);
  if (!marks) return [image];
  const note = verdict(marks);
  note.ariaHidden = "true"; // the image's alternative text says the same
  return [image, note];
}

function verdict(text) {
  const note = element("span", [text]);
  note.className = "verdict";
  return note;
}

/** Shape and colour with whether each is right; omits those that were not judged. */
function judged({ shape, colour }) {
  return [["shape", shape], ["colour", colour]].filter(([, right]) => right !== null);
}

export function altOf(picture, epoch) {
  const verdicts = judged(picture).map(([what, right]) => `; ${what} ${right ? "right" : "wrong"}`);
  return `“${picture.prompt}” as drawn at epoch ${epoch}${verdicts.join("")}`;
}

export function marksOf(picture) {
  return judged(picture).map(([what, right]) => `${right ? "✓" : "✗"} ${what}`).join("  ");
}
