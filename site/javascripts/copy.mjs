// Adds a copy button to each block of code.

const SHOWN_MS = 2000;

export function addCopyButtons(root) {
  for (const block of root.querySelectorAll("pre")) {
    if (block.querySelector(".copy") || !block.querySelector("code")) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      button.textContent = (await copied(block.querySelector("code"))) ? "Copied" : "Selected";
      setTimeout(() => (button.textContent = "Copy"), SHOWN_MS);
    });
    block.prepend(button);
  }
}

/** Copies a text; resolves to whether that worked. If the browser forbids it, the text is selected instead. */
async function copied(code) {
  try {
    await navigator.clipboard.writeText(code.textContent.trim());
    return true;
  } catch {
    getSelection().selectAllChildren(code);
    return false;
  }
}
