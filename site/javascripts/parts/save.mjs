// Saves a file that a page has made.

/** Lets the browser save a file; `content` is a text or a Blob. */
export function save(name, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content]));
  link.download = name.replace(/[/\\:*?"<>|]/g, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
