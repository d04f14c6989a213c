// The optimizers: AdamW without decay, as training/optim/adamw.py computes it, and the outer one of local updates.

/** Settings are rate, betas, eps and maxNorm; see training/optim/config.py. */
export function makeAdam(length, settings) {
  return { settings, steps: 0, moment1: new Float32Array(length), moment2: new Float32Array(length) };
}

/**
 * Updates the weights by a gradient.
 *
 * @param {number} factor of the learning rate; see `rateFactor`
 */
export function adamStep(adam, weights, gradient, factor) {
  const { betas, eps, maxNorm, rate } = adam.settings;
  adam.steps += 1;
  const [beta1, beta2] = betas;
  const clip = clipFactor(gradient, maxNorm);
  const [start1, start2] = [1 - beta1 ** adam.steps, 1 - beta2 ** adam.steps];
  for (let at = 0; at < weights.length; at++) {
    const slope = gradient[at] * clip;
    adam.moment1[at] += (1 - beta1) * (slope - adam.moment1[at]);
    adam.moment2[at] = beta2 * adam.moment2[at] + (1 - beta2) * slope * slope;
    weights[at] -= (factor * rate * (adam.moment1[at] / start1)) / (Math.sqrt(adam.moment2[at] / start2) + eps);
  }
}

/** What the gradient is multiplied with, so that its norm is at most `most`. */
function clipFactor(gradient, most) {
  let squares = 0;
  for (const slope of gradient) squares += slope * slope;
  return squares <= most * most ? 1 : most / Math.sqrt(squares);
}

/** Learning rate of the update after `epoch` others, over its peak; see training/optim/schedule.py. */
export function rateFactor(epoch, { warmup, total }) {
  if (epoch < warmup) return (epoch + 1) / warmup;
  return Math.max(0, (total - epoch) / (total - warmup));
}

/**
 * Moves the common weights by the mean distance: SGD with Nesterov's momentum (training/swarm/epoch/strategies).
 *
 * @param {Float32Array} velocity zeros at first; of the optimizer
 */
export function outerStep(common, velocity, distance, { rate, momentum }) {
  for (let at = 0; at < common.length; at++) {
    velocity[at] = momentum * velocity[at] + distance[at];
    common[at] -= rate * (distance[at] + momentum * velocity[at]);
  }
}
