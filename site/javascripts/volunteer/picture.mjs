// A volunteer's picture as a PNG, for sites that take no SVG; the browser draws it.

const TWICE = 2;

/** Draws an SVG at twice its size; resolves to the PNG. */
export async function pngOf(address) {
  const text = await (await fetch(address, { cache: "no-cache" })).text();
  // From the text and not from the address: a canvas with a picture of another site cannot be read.
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = TWICE * image.naturalWidth;
  canvas.height = TWICE * image.naturalHeight;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}
