// A chart's geometry: round values along an axis, places in pixels, and lines as paths. It needs no document.

/** Equal distances between round values, so that about `about` of them lie in the extent; `whole` allows no fractions. */
function roundStep(extent, about, whole) {
  const raw = extent / about || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= raw * 0.999);
  return whole ? Math.max(1, Math.round(step)) : step;
}

/**
 * Round values at equal distances within a range.
 *
 * @param {number[]} range [lowest, highest]
 * @param {number} about how many are wanted; there may be half or twice as many
 * @param {boolean} [whole] whether they must be whole numbers
 */
export function roundValues([low, high], about, whole = false) {
  const step = roundStep(high - low, about, whole);
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  // Multiples of 0.1 are not exact: 3 * 0.1 would be shown as 0.30000000000000004.
  return Array.from({ length: count }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

/** The smallest range from one round value to another that contains all values; never without extent. */
export function roundedOut(values, about, fromZero) {
  const [low, high] = [fromZero ? 0 : Math.min(...values), Math.max(...values)];
  if (!Number.isFinite(high)) return [0, 1];
  if (low === high) return [fromZero ? 0 : low - Math.abs(low || 1) / 2, high + Math.abs(high || 1) / 2];
  const step = roundStep(high - low, about, false);
  return [Math.floor(low / step) * step, Math.ceil(high / step) * step];
}

/**
 * @typedef {object} Scale
 * @property {(x: number) => number} across pixels from the left edge of the plot's area
 * @property {(y: number) => number} down pixels from its top edge
 * @property {(pixels: number) => number} back the x at a distance from the left edge
 */

/** @returns {Scale} of two ranges on an area of so many pixels */
export function scaleOf([left, right], [low, high], { width, height }) {
  const [perX, perY] = [width / (right - left || 1), height / (high - low)];
  return {
    across: (x) => (x - left) * perX,
    down: (y) => (high - y) * perY,
    back: (pixels) => left + pixels / perX,
  };
}

/** Index of the first point whose x is at least `x`; the points are sorted by x. */
function firstFrom(points, x) {
  let [low, high] = [0, points.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The points in a range, and the next beyond an edge on which there is none, so that a line reaches the edges. */
export function pointsAround(points, [from, to]) {
  const first = firstFrom(points, from);
  return points.slice(points[first]?.[0] === from ? first : Math.max(0, first - 1), firstFrom(points, to) + 1);
}

/** The known values in a range; if there are none, those on both sides of it. */
export function valuesIn(points, [from, to]) {
  const known = points.filter(([, value]) => value !== null);
  const within = known.filter(([x]) => x >= from && x <= to);
  return (within.length ? within : known).map(([, value]) => value);
}

/**
 * The point at `x`, or null. Where a line has means over several epochs, the nearest mean counts: none is further than
 * half of the distance to its neighbour. Where the line has a gap, there is no point.
 */
export function pointAt(points, x) {
  const after = firstFrom(points, x);
  const near = [points[after - 1], points[after]].filter(Boolean).sort((a, b) => Math.abs(a[0] - x) - Math.abs(b[0] - x))[0];
  if (!near || near[1] === null) return null;
  const index = near === points[after] ? after : after - 1;
  const gaps = [points[index - 1], points[index + 1]].filter(Boolean).map((other) => Math.abs(other[0] - near[0]));
  const reach = gaps.length ? Math.min(...gaps) / 2 : 0;
  return Math.abs(near[0] - x) <= reach ? near : null;
}

/**
 * Of many points at most two for each `columns`-th part of their range, the lowest and the highest: a line through them
 * covers the same pixels. A point without a value, which interrupts the line, stays.
 */
export function thinned(points, columns) {
  if (points.length <= 2 * columns) return points;
  const [left, width] = [points[0][0], points.at(-1)[0] - points[0][0]];
  const parts = new Map();
  for (const [index, point] of points.entries()) {
    const part = point[1] === null ? `gap at ${index}` : Math.floor((columns * (point[0] - left)) / width);
    if (parts.has(part)) parts.get(part).push(point);
    else parts.set(part, [point]);
  }
  return [...parts.values()].flatMap(extremes);
}

function extremes(points) {
  let [low, high] = [points[0], points[0]];
  for (const point of points) {
    if (point[1] < low[1]) low = point;
    if (point[1] > high[1]) high = point;
  }
  if (low === high) return [low];
  return low[0] < high[0] ? [low, high] : [high, low];
}

const tenth = (pixels) => Math.round(10 * pixels) / 10;

/** A line as the path of an SVG, with a gap where a value is missing; a point between two gaps is a dot. */
export function linePath(points, { across, down }) {
  let [path, isDown] = ["", false];
  for (const [x, y] of points) {
    if (y !== null) path += `${isDown ? "L" : "M"}${tenth(across(x))} ${tenth(down(y))}${isDown ? "" : "h0"}`;
    isDown = y !== null;
  }
  return path;
}

/** The same, but each value stays until the next point. */
export function stepPath(points, { across, down }) {
  const known = points.filter(([, y]) => y !== null);
  return known.map(([x, y], index) => `${index ? "H" : "M"}${tenth(across(x))}${index ? "V" : " "}${tenth(down(y))}`).join("");
}

/** A path that goes on to the zero line and back along it, to be filled. */
export function areaPath(path, points, { across, down }) {
  const zero = tenth(down(0));
  return path && `${path}L${tenth(across(points.at(-1)[0]))} ${zero}H${tenth(across(points[0][0]))}Z`;
}
