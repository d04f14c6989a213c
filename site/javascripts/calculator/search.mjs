// A setup in the reader's own words. Python understands them; the form then shows what they set.

/**
 * @param {(name: string) => HTMLElement} slot
 * @param {object} page askPython(function, request) -> answer, or {error}; show(values), which sets the form's fields
 */
export function startSearching(slot, page) {
  const form = slot("search");
  const said = slot("search-said");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const { error, values, said: sentence } = await page.askPython("search", { text: form.elements.words.value });
    said.textContent = error ?? sentence;
    form.elements.words.setAttribute("aria-invalid", Boolean(error));
    if (!error) page.show(values);
  });
}
