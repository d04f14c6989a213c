// What a vector of gradients becomes on its way: 32, 8 or 1 bits a value. A code is {bits, length, scales, codes}.

export const BLOCK = 512; // values with a common scale; BLOCK_SIZE of calculator/swarm/exchange.py

const DECADES = 7;

/** Codes a vector; takes its values as they are. */
export function encode(values, bits) {
  if (bits === 32) return { bits, length: values.length, scales: new Float32Array(0), codes: values.slice() };
  return bits === 8 ? encode8(values) : encode1(values);
}

export function decode(code) {
  if (code.bits === 32) return code.codes;
  const values = new Float32Array(code.length);
  for (let at = 0; at < values.length; at++) values[at] = valueOf(code, at) * code.scales[Math.floor(at / BLOCK)];
  return values;
}

function valueOf({ bits, codes }, at) {
  return bits === 8 ? DYNAMIC[codes[at]] : codes[at >> 3] & (1 << (at & 7)) ? 1 : -1;
}

export function bytesOf({ scales, codes }) {
  return scales.byteLength + codes.byteLength;
}

/** The memory of a code, which a message hands over without a copy. */
export function memoryOf({ scales, codes }) {
  return [scales.buffer, codes.buffer];
}

/** The largest magnitude of each block, and the nearest of 256 values for each quotient: BlockwiseCodec of the trainer. */
function encode8(values) {
  const scales = new Float32Array(Math.ceil(values.length / BLOCK));
  const codes = new Uint8Array(values.length);
  const quotient = new Float32Array(1);
  const bits = new Uint32Array(quotient.buffer);
  for (let block = 0; block < scales.length; block++) {
    const end = Math.min(values.length, (block + 1) * BLOCK);
    let largest = 0;
    for (let at = block * BLOCK; at < end; at++) largest = Math.max(largest, Math.abs(values[at]));
    scales[block] = largest;
    // Two units more: rounding must not bring the quotient of the largest value below 1.
    const factor = Math.fround(Math.fround(1 / Math.max(largest, TINY)) * (1 + 2 ** -22));
    for (let at = block * BLOCK; at < end; at++) {
      quotient[0] = values[at] * factor;
      codes[at] = NEAREST[bits[0] >>> 16];
    }
  }
  return { bits: 8, length: values.length, scales, codes };
}

/** Signs, and the mean magnitude of each block (Seide et al. 2014; Karimireddy et al. 2019, arXiv:1901.09847). */
function encode1(values) {
  const scales = new Float32Array(Math.ceil(values.length / BLOCK));
  const codes = new Uint8Array(Math.ceil(values.length / 8));
  for (let block = 0; block < scales.length; block++) {
    const end = Math.min(values.length, (block + 1) * BLOCK);
    let sum = 0;
    for (let at = block * BLOCK; at < end; at++) {
      sum += Math.abs(values[at]);
      if (values[at] >= 0) codes[at >> 3] |= 1 << (at & 7);
    }
    scales[block] = sum / (end - block * BLOCK);
  }
  return { bits: 1, length: values.length, scales, codes };
}

/**
 * Codes a vector and what earlier codes have left out of it. Returns the code, and what this one leaves out.
 *
 * `left` changes only when the caller says so: an exchange may fail, and be repeated.
 */
export function encodeWithFeedback(values, left, bits) {
  const sum = values.map((value, at) => value + left[at]);
  const code = encode(sum, bits);
  const sent = decode(code);
  return { code, left: sum.map((value, at) => value - sent[at]) };
}

const TINY = 2 ** -126;

/** The 256 values of the dynamic type; see calculator/figures/rules/eight_bit.py. */
export const DYNAMIC = Float32Array.from(dynamicValues());

function dynamicValues() {
  const values = [0, 1];
  for (let decade = 0; decade < DECADES; decade++) {
    const count = 2 ** decade;
    for (let place = 0; place < count; place++) {
      const mean = 10 ** (decade - DECADES + 1) * (0.1 + (0.9 * (place + 0.5)) / count);
      values.push(mean, -mean);
    }
  }
  return values.sort((one, other) => one - other);
}

/** The nearest value's place, by the upper half of a 32-bit number: see training/optim/eight_bit/codebook.py. */
const NEAREST = nearestValues();

function nearestValues() {
  const found = new Uint8Array(1 << 16);
  const middle = new Float32Array(1);
  const bits = new Uint32Array(middle.buffer);
  for (let upper = 0; upper < found.length; upper++) {
    bits[0] = ((upper << 16) | (1 << 15)) >>> 0;
    let place = 0;
    const value = middle[0] || 0; // NaN counts as 0
    while (place < 255 && value > (DYNAMIC[place] + DYNAMIC[place + 1]) / 2) place += 1;
    found[upper] = place;
  }
  return found;
}
