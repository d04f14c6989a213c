// What the model has learned: its pictures of all captions, their loss, and how many are right.

import { draw, squares } from "./model.mjs";

/**
 * Draws all captions.
 *
 * A picture is right if no other caption's true picture is as near to it. The result's `pictures` are bytes as a canvas
 * has them: a row of pictures for each colour, a column for each shape.
 */
export function look({ sizes, side }, weights, data, space) {
  const drawn = data.every.map(({ words }) => draw(sizes, weights, words, space));
  const losses = drawn.map((picture, place) => squares(picture, data.pictures[place]) / picture.length);
  const isRight = drawn.map((picture, place) => nearest(picture, data.pictures) === place);
  const known = data.every.map((sample) => data.seen.includes(sample));
  const of = (wanted, values) => values.filter((_, place) => known[place] === wanted);
  const sum = (values) => values.reduce((total, one) => total + Number(one), 0);
  return {
    loss: sum(of(true, losses)) / data.seen.length,
    right: sum(of(true, isRight)),
    rightUnseen: sum(of(false, isRight)),
    pictures: mosaic(drawn, data, side),
  };
}

function nearest(picture, pictures) {
  let [best, least] = [0, Infinity];
  pictures.forEach((other, place) => {
    const distance = squares(picture, other);
    if (distance < least) [best, least] = [place, distance];
  });
  return best;
}

/** All pictures as one, on white paper. */
function mosaic(drawn, { masks, paper }, side) {
  const width = masks.length * side;
  const bytes = new Uint8ClampedArray(4 * side * side * drawn.length);
  drawn.forEach((picture, place) => {
    const [top, left] = [Math.floor(place / masks.length) * side, (place % masks.length) * side];
    for (let pixel = 0; pixel < side * side; pixel++) {
      const to = 4 * ((top + Math.floor(pixel / side)) * width + left + (pixel % side));
      for (let part = 0; part < 3; part++) bytes[to + part] = paper[part] + 255 * picture[3 * pixel + part];
      bytes[to + 3] = 255;
    }
  });
  return bytes;
}
