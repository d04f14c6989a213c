// Computes what site/javascripts/together/ computes, for a comparison with PyTorch: `node together_engine.mjs FILE` reads
// a JSON object of tasks, each {ask, ...}, and prints their answers. Vectors are base64 of 32-bit numbers.

import fs from "node:fs";

import { adamStep, makeAdam, outerStep, rateFactor } from "../../../site/javascripts/together/adam.mjs";
import { clippedShares } from "../../../site/javascripts/together/averages.mjs";
import { decode, encode, encodeWithFeedback } from "../../../site/javascripts/together/codecs.mjs";
import { look } from "../../../site/javascripts/together/look.mjs";
import { addGradient, dataOf, dice, firstWeights, sampleOf, workspace } from "../../../site/javascripts/together/model.mjs";

const read = (text) => new Float32Array(new Uint8Array(Buffer.from(text, "base64")).buffer);
const written = (values) => Buffer.from(values.buffer, values.byteOffset, values.byteLength).toString("base64");
const dataFor = (drawings) => dataOf({ ...drawings, masks: drawings.masks.map((text) => new Uint8Array(Buffer.from(text, "base64"))) });

const ASKS = {
  dice: ({ seed, count }) => Array.from({ length: count }, dice(seed)),
  weights: ({ settings }) => written(firstWeights(settings.sizes, settings.seed)),
  gradient: ({ settings, drawings, weights, pairs }) => {
    const data = dataFor(drawings);
    const gradient = new Float32Array(read(weights).length);
    const samples = pairs.map((pair) => sampleOf(data, ...pair));
    const loss = addGradient(settings.sizes, read(weights), samples, gradient, workspace(settings.sizes, samples.length));
    return { loss, gradient: written(gradient) };
  },
  look: ({ settings, drawings, weights }) => {
    const seen = look(settings, read(weights), dataFor(drawings), workspace(settings.sizes, 1));
    return { ...seen, pictures: Buffer.from(seen.pictures).toString("base64") };
  },
  adam: ({ settings, weights, gradients, factors }) => {
    const moved = read(weights);
    const adam = makeAdam(moved.length, settings);
    gradients.forEach((gradient, step) => adamStep(adam, moved, read(gradient), factors[step]));
    return written(moved);
  },
  outer: ({ outer, weights, distances }) => {
    const moved = read(weights);
    const velocity = new Float32Array(moved.length);
    for (const distance of distances) outerStep(moved, velocity, read(distance), outer);
    return written(moved);
  },
  rates: ({ epochs, warmup, total }) => epochs.map((epoch) => rateFactor(epoch, { warmup, total })),
  shares: ({ vectors, samples }) => clippedShares(vectors.map(read), samples),
  code: ({ values, bits }) => {
    const code = encode(read(values), bits);
    return { scales: written(code.scales), codes: written(code.codes), decoded: written(decode(code)) };
  },
  feedback: ({ vectors, bits }) => {
    let left = new Float32Array(read(vectors[0]).length);
    return vectors.map((values) => {
      const made = encodeWithFeedback(read(values), left, bits);
      left = made.left;
      return { sent: written(decode(made.code)), left: written(left) };
    });
  },
};

const tasks = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
console.log(JSON.stringify(tasks.map(({ ask, ...given }) => ASKS[ask](given))));
