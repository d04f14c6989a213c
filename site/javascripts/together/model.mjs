// The model of the page Train together, and its gradient: a caption goes in, a picture comes out.
//
//   N samples   C colours and shapes, the words of captions   H hidden width   O values of a picture
//
// Three layers of weights with biases, and between them max(0, x):  words -> H -> H -> picture. All parameters lie in
// one vector, as peers exchange it: first the three matrices, each row by row as PyTorch stores it, then the biases.
// A picture is what is drawn on white paper: red, green and blue of each pixel, minus those of the paper.

const WORDS = 2; // of a caption: a colour and a shape

/** Numbers in [0, 1) from a seed: Tommy Ettinger's mulberry32. benchmarks/swarm/together.py has the same. */
export function dice(seed) {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Where each matrix and each bias begins in the vector, and the vector's length; for [C, H, H, O]. */
export function layoutOf(sizes) {
  const matrices = [];
  const biases = [];
  let length = 0;
  for (let layer = 1; layer < sizes.length; layer++) {
    matrices.push(length);
    length += sizes[layer] * sizes[layer - 1];
  }
  for (let layer = 1; layer < sizes.length; layer++) {
    biases.push(length);
    length += sizes[layer];
  }
  return { matrices, biases, length };
}

/** First weights, the same for the same seed: even between the bounds of He et al. 2015, and biases of 0. */
export function firstWeights(sizes, seed) {
  const { matrices, length } = layoutOf(sizes);
  const weights = new Float32Array(length);
  const random = dice(seed);
  matrices.forEach((begin, layer) => {
    const bound = Math.sqrt((layer === 2 ? 0.1 : 6) / (layer ? sizes[layer] : WORDS));
    const end = begin + sizes[layer] * sizes[layer + 1];
    for (let at = begin; at < end; at++) weights[at] = bound * (2 * random() - 1);
  });
  return weights;
}

/** A sample: the places of a caption's words, and the picture that belongs to it. */
export function sampleOf(data, colour, shape) {
  return { words: [colour, data.colours.length + shape], picture: data.pictures[colour * data.masks.length + shape] };
}

/** The pictures of all captions; `masks` has, for each shape, how much of each pixel it covers: 0 to 255. */
export function dataOf({ colours, masks, paper, unseen }) {
  const pictures = colours.flatMap((colour) => masks.map((mask) => drawn(mask, colour, paper)));
  const data = { colours, masks, paper, pictures };
  const isSeen = (colour, shape) => !unseen.some(([one, other]) => one === colour && other === shape);
  const every = colours.flatMap((_, colour) => masks.map((_, shape) => [colour, shape]));
  data.every = every.map(([colour, shape]) => sampleOf(data, colour, shape));
  data.seen = every.flatMap(([colour, shape], place) => (isSeen(colour, shape) ? [data.every[place]] : []));
  return data;
}

function drawn(mask, colour, paper) {
  const picture = new Float32Array(3 * mask.length);
  mask.forEach((covered, pixel) => {
    for (let part = 0; part < 3; part++) picture[3 * pixel + part] = (covered / 255) * ((colour[part] - paper[part]) / 255);
  });
  return picture;
}

/** Memory for a pass over at most `most` samples. */
export function workspace(sizes, most) {
  const rows = (size) => Array.from({ length: most }, () => new Float32Array(size));
  return { hidden: [rows(sizes[1]), rows(sizes[2])], slopes: [rows(sizes[1]), rows(sizes[2])] };
}

/**
 * Adds the gradient of the samples' summed losses to `gradient`; returns the summed loss.
 *
 * The loss of a sample is the mean squared difference of the values of its picture.
 */
export function addGradient(sizes, weights, samples, gradient, space) {
  const layout = layoutOf(sizes);
  samples.forEach(({ words }, number) => toHidden(sizes, layout, weights, words, space, number));
  for (const rows of space.slopes) for (let number = 0; number < samples.length; number++) rows[number].fill(0);
  const loss = lastLayer(sizes, layout, weights, samples, gradient, space);
  samples.forEach(({ words }, number) => backFromHidden(sizes, layout, weights, words, gradient, space, number));
  return loss;
}

/** The two hidden layers of one sample. */
function toHidden(sizes, { matrices, biases }, weights, words, { hidden }, number) {
  const [first, second] = [hidden[0][number], hidden[1][number]];
  for (let row = 0; row < first.length; row++) {
    let sum = weights[biases[0] + row];
    for (const word of words) sum += weights[matrices[0] + row * sizes[0] + word];
    first[row] = Math.max(0, sum);
  }
  for (let row = 0; row < second.length; row++) {
    const sum = weights[biases[1] + row] + dot(weights, matrices[1] + row * first.length, first);
    second[row] = Math.max(0, sum);
  }
}

/** Row by row of the last matrix, the largest: each row serves all samples while it is in the processor's cache. */
function lastLayer(sizes, { matrices, biases }, weights, samples, gradient, { hidden, slopes }) {
  const [width, values] = sizes.slice(2);
  let loss = 0;
  for (let row = 0; row < values; row++) {
    const begin = matrices[2] + row * width;
    for (let number = 0; number < samples.length; number++) {
      const inputs = hidden[1][number];
      const off = weights[biases[2] + row] + dot(weights, begin, inputs) - samples[number].picture[row];
      loss += (off * off) / values;
      const slope = (2 * off) / values;
      const back = slopes[1][number];
      gradient[biases[2] + row] += slope;
      for (let at = 0; at < width; at++) {
        gradient[begin + at] += slope * inputs[at];
        back[at] += slope * weights[begin + at];
      }
    }
  }
  return loss;
}

/** From the slopes at the second hidden layer to the first two matrices. */
function backFromHidden(sizes, { matrices, biases }, weights, words, gradient, { hidden, slopes }, number) {
  const [first, second] = [hidden[0][number], hidden[1][number]];
  for (let row = 0; row < second.length; row++) {
    if (!second[row]) continue; // where max(0, x) is 0, nothing passes
    const slope = slopes[1][number][row];
    const begin = matrices[1] + row * first.length;
    gradient[biases[1] + row] += slope;
    for (let at = 0; at < first.length; at++) {
      gradient[begin + at] += slope * first[at];
      slopes[0][number][at] += slope * weights[begin + at];
    }
  }
  for (let row = 0; row < first.length; row++) {
    if (!first[row]) continue;
    const slope = slopes[0][number][row];
    gradient[biases[0] + row] += slope;
    for (const word of words) gradient[matrices[0] + row * sizes[0] + word] += slope;
  }
}

/** Four sums at once: each addition would otherwise wait for the last one. */
function dot(weights, begin, inputs) {
  let [a, b, c, d] = [0, 0, 0, 0];
  for (let at = 0; at < inputs.length; at += 4) {
    a += weights[begin + at] * inputs[at];
    b += weights[begin + at + 1] * inputs[at + 1];
    c += weights[begin + at + 2] * inputs[at + 2];
    d += weights[begin + at + 3] * inputs[at + 3];
  }
  return a + b + c + d;
}

/** What the model draws for a caption. */
export function draw(sizes, weights, words, space) {
  const layout = layoutOf(sizes);
  toHidden(sizes, layout, weights, words, space, 0);
  const [width, values] = sizes.slice(2);
  const [inputs, picture] = [space.hidden[1][0], new Float32Array(values)];
  for (let row = 0; row < values; row++) {
    picture[row] = weights[layout.biases[2] + row] + dot(weights, layout.matrices[2] + row * width, inputs);
  }
  return picture;
}

/** Mean loss over samples. */
export function lossOf(sizes, weights, samples, space) {
  let sum = 0;
  for (const { words, picture } of samples) sum += squares(draw(sizes, weights, words, space), picture) / picture.length;
  return sum / samples.length;
}

/** Sum of the squared differences of two pictures. */
export function squares(one, other) {
  let sum = 0;
  for (let at = 0; at < one.length; at++) sum += (one[at] - other[at]) ** 2;
  return sum;
}
