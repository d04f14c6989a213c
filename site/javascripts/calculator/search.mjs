// A setup in the reader's own words. Python understands them; the form then shows what they set.

/**
 * @param {(name: string) => HTMLElement} slot
 * @param {object} page readWith(function, request, control) -> answer, or null if there is none; show(values), which
 *   sets the form's fields
 */
export function startSearching(slot, page) {
  const form = slot("search");
  const said = slot("search-said");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const { words } = form.elements;
    said.textContent = "";
    const answer = await page.readWith("search", { text: words.value }, words);
    if (!answer) return;
    said.textContent = answer.said;
    page.show(answer.values);
  });
}
