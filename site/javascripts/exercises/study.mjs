// The quiz of a reader study: ten questions without verdicts. The answers become a file that the reader may hand over.

import { askPython } from "../python/python.mjs";
import { save } from "../parts/save.mjs";

/**
 * @typedef {object} Quiz
 * @property {(which: string) => HTMLElement} slot
 * @property {object} runtime Python's files; see python/python.mjs
 * @property {object} who study, reader and part, as the address names them
 * @property {object[]} questions of Python's answer
 * @property {number} begun when the questions were shown, in milliseconds
 */

export function startStudy(root) {
  const given = new URLSearchParams(location.search);
  const who = Object.fromEntries(["study", "reader", "part"].map((name) => [name, given.get(name)]));
  if (!Object.values(who).some(Boolean)) return () => {};
  const slot = (which) => root.querySelector(`[data-slot="${which}"]`);
  const quiz = { slot, runtime: JSON.parse(root.dataset.runtime), who, questions: [], begun: 0 };
  slot("consent").textContent =
    `You are asked to take part in the study “${who.study}” as reader “${who.reader}”: ten questions, about 15 minutes, ` +
    `${who.part} you read this site. Leave empty what you do not know. Nothing is sent: at the end this page saves a file with ` +
    "your answers and the time that they took on your machine. You decide whether you hand it over, and you can close the page at any time.";
  slot("quiz").hidden = false;
  slot("begin").addEventListener("click", () => begin(quiz));
  slot("form").addEventListener("submit", (event) => {
    event.preventDefault();
    finish(quiz);
  });
  return () => {};
}

async function begin(quiz) {
  const { slot, runtime, who } = quiz;
  slot("message").textContent = "Starting Python in your browser …";
  const answer = await askPython(runtime, "ask_reader", who).catch((error) => ({ error: `Python failed: ${error.message}. Try again.` }));
  slot("message").textContent = answer.error ?? "";
  if (answer.error) return;
  quiz.questions = answer.questions;
  quiz.begun = performance.now();
  slot("questions").replaceChildren(...answer.questions.map(shown));
  slot("begin-line").hidden = true;
  slot("form").hidden = false;
  slot("questions").querySelector("h3").focus();
}

function shown({ title, question }, index) {
  const part = document.createElement("section");
  const heading = document.createElement("h3");
  heading.textContent = `${index + 1}. ${title}`;
  heading.tabIndex = -1;
  heading.id = `question-${index + 1}`;
  part.className = "exercise study__question";
  part.setAttribute("aria-labelledby", heading.id);
  part.innerHTML = question;
  part.prepend(heading);
  return part;
}

function finish(quiz) {
  const { slot, who, questions, begun } = quiz;
  const { elements } = slot("form");
  const answers = Object.fromEntries(questions.map(({ name }) => [name, elements[name].value]));
  const seconds = Math.round((performance.now() - begun) / 1000);
  const name = `${who.study}-${who.reader}-${who.part}.json`;
  save(name, JSON.stringify({ kind: "reader-study", version: 1, ...who, seconds, answers }));
  const empty = Object.values(answers).filter((answer) => !answer.trim()).length;
  slot("message").textContent = `Saved as ${name}${empty ? `, with ${empty} empty answers` : ""}. Thank you.`;
}
