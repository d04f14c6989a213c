// How a peer averages the parts that it gets: the mean by samples, or CenteredClip. A rule returns the share of each
// part in the average. training/swarm/defence/clipping.py says why, and is what this is compared with.

export const RADIUS = 1; // of Clipping: a multiple of the distance within which more than half of the parts lie
export const ITERATIONS = 5;

const SAME = 1e-9;

/** The weighted sum of vectors. */
export function average(vectors, shares) {
  const sum = new Float32Array(vectors[0].length);
  vectors.forEach((vector, number) => {
    for (let at = 0; at < sum.length; at++) sum[at] += shares[number] * vector[at];
  });
  return sum;
}

/** Shares by samples. */
export function meanShares(vectors, samples) {
  const total = samples.reduce((sum, one) => sum + one, 0);
  return samples.map((one) => one / total);
}

/** Shares by CenteredClip. A peer's samples count at most as much as the median peer's. */
export function clippedShares(vectors, samples) {
  const median = [...samples].sort((one, other) => one - other)[(samples.length - 1) >> 1];
  const weights = meanShares(vectors, samples.map((one) => Math.min(one, median)));
  const products = vectors.map((one) => vectors.map((other) => inner(one, other)));
  const start = firstEstimate(products);
  let shares = weights.map((_, number) => Number(number === start));
  for (let move = 0; move < ITERATIONS; move++) {
    const distances = distancesFrom(products, shares);
    const radius = RADIUS * reach(distances);
    const pulls = weights.map((weight, number) => weight * (distances[number] > radius ? radius / distances[number] : 1));
    const pulled = pulls.reduce((sum, one) => sum + one, 0);
    shares = shares.map((share, number) => share * (1 - pulled) + pulls[number]);
  }
  return shares;
}

/** The vector that is nearest to most others; of equally near ones the first. */
function firstEstimate(products) {
  const nearest = products.map((row, one) => reach(row.map((_, other) => root(products[one][one] + products[other][other] - 2 * row[other]))));
  const least = Math.min(...nearest);
  return nearest.findIndex((distance) => distance <= least * (1 + SAME));
}

/** Distance of each vector from the estimate, which is their sum by shares. */
function distancesFrom(products, shares) {
  const along = products.map((row) => row.reduce((sum, product, other) => sum + product * shares[other], 0));
  const square = along.reduce((sum, one, number) => sum + one * shares[number], 0);
  return products.map((row, number) => root(row[number] - 2 * along[number] + square));
}

/** Distance within which more than half of all lie. */
function reach(distances) {
  return [...distances].sort((one, other) => one - other)[distances.length >> 1];
}

function inner(one, other) {
  let sum = 0;
  for (let at = 0; at < one.length; at++) sum += one[at] * other[at];
  return sum;
}

function root(square) {
  return Math.sqrt(Math.max(0, square));
}
