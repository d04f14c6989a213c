// A question in the reader's own words. Python understands and answers it; the page then shows what belongs to it.

/**
 * @param {(name: string) => HTMLElement} slot
 * @param {object} page readWith(function, request, control) -> answer, or null if there is none; defaults, the setup with
 *   which the form begins; show(answer), which sets the form's fields and opens the table that the question is about
 */
export function startSearching(slot, page) {
  const form = slot("search");
  const [answered, said] = [slot("search-answer"), slot("search-said")];
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const { words } = form.elements;
    answered.textContent = said.textContent = "";
    const answer = await page.readWith("search", { text: words.value, defaults: page.defaults }, words);
    if (!answer) return;
    answered.textContent = answer.answer;
    said.textContent = answer.said;
    page.show(answer);
  });
}
