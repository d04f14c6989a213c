// A peer of the page Train together, in a worker of its own. It trains its copy of the model, and exchanges with the
// other peers over message ports, not through the page. Messages:
//
//   page -> peer    {own, names, ports, settings, drawings, switches}      once; `ports` in the order of the other names
//   peer -> page    {kind: "update", update, samples, share, bytes}        after each update
//                   {kind: "silence", name, gone}                          nothing comes from another peer
//                   {kind: "look", update, loss, right, pictures}          of the first peer of the group: what is learned
//                   {kind: "end"}

import { adamStep, makeAdam, outerStep, rateFactor } from "./adam.mjs";
import { clippedShares, meanShares } from "./averages.mjs";
import { averaged, closeExchange, openExchange } from "./exchange.mjs";
import { look } from "./look.mjs";
import { addGradient, dataOf, dice, firstWeights, workspace } from "./model.mjs";

/**
 * @typedef {object} Peer
 * @property {object} settings see benchmarks/swarm/together.py
 * @property {object} switches bits (32, 8, 1), pace ("awaited", "delayed", "local"), hostile, clip
 * @property {Float32Array} weights
 * @property {Float32Array} sums of gradients; with CenteredClip those of earlier updates count less and less
 * @property {number} counted samples in the sums
 * @property {number} share samples of this peer in the last update
 * @property {number} samples all that it has computed
 * @property {number} update updates so far
 */

self.onmessage = async ({ data: { own, names, ports, settings, drawings, switches } }) => {
  const others = names.filter((name) => name !== own);
  const onSilence = (name, gone) => self.postMessage({ kind: "silence", name, gone });
  const exchange = openExchange(own, names, new Map(others.map((name, place) => [name, ports[place]])), onSilence);
  const peer = makePeer(settings, switches, exchange, names.indexOf(own), dataOf(drawings));
  tellLook(peer);
  await PACES[switches.pace](peer);
  closeExchange(exchange);
  self.postMessage({ kind: "end" });
};

function makePeer(settings, switches, exchange, number, data) {
  const weights = firstWeights(settings.sizes, settings.seed);
  const betas = switches.clip ? [0, settings.betas[1]] : settings.betas;
  return {
    settings,
    switches,
    exchange,
    data,
    weights,
    adam: makeAdam(weights.length, { ...settings, betas }),
    space: workspace(settings.sizes, settings.microBatch),
    random: dice(settings.seed + 1 + number),
    sums: new Float32Array(weights.length),
    factor: switches.hostile === exchange.own ? settings.hostileFactor : 1,
    way: { bits: switches.bits, sharesOf: switches.clip ? clippedShares : meanShares },
    counted: 0,
    share: 0,
    samples: 0,
    update: 0,
  };
}

const PACES = {
  /** Each update waits for the average of the gradients that belong to it. */
  awaited: async (peer) => {
    while (peer.update < peer.settings.updates) {
      const [gradient, samples] = await compute(peer);
      step(peer, await averaged(peer.exchange, peer.update, gradient, samples, peer.way));
    }
  },

  /** The average goes on while the next gradients are computed, with weights that lack its update. */
  delayed: async (peer) => {
    let underWay = null;
    for (let round = 0; round < peer.settings.updates; round++) {
      const [gradient, samples] = await compute(peer);
      if (underWay) step(peer, await underWay);
      underWay = averaged(peer.exchange, round, gradient, samples, peer.way);
    }
    step(peer, await underWay);
  },

  /** Each peer updates its own weights; now and then all move the common ones by their mean distance. */
  local: async (peer) => {
    const { inner, updates, outer } = peer.settings;
    const common = peer.weights.slice();
    const velocity = new Float32Array(common.length);
    while (peer.update < updates) {
      let samples = 0;
      // As the trainer, whose epoch is an exchange here: the rate is the same for all updates in between.
      const factor = rateFactor(peer.update / inner, { warmup: peer.settings.warmup / inner, total: updates / inner });
      for (let count = 0; count < inner; count++) {
        const [gradient, share] = await compute(peer);
        adamStep(peer.adam, peer.weights, gradient, factor);
        samples += share;
      }
      const distance = common.map((weight, at) => peer.factor * (weight - peer.weights[at]));
      outerStep(common, velocity, await averaged(peer.exchange, peer.update, distance, samples, peer.way), outer);
      peer.weights.set(common);
      end(peer, inner);
    }
  },
};

/** The mean gradient of this peer's part of the batch, as it sends it, and the number of its samples. */
async function compute(peer) {
  const { settings, switches, exchange, data } = peer;
  const place = exchange.group.indexOf(exchange.own);
  const { length } = exchange.group;
  peer.share = Math.floor((settings.batch * (place + 1)) / length) - Math.floor((settings.batch * place) / length);
  const kept = switches.clip ? settings.betas[0] : 0;
  peer.sums.forEach((sum, at) => (peer.sums[at] = kept * sum));
  peer.counted *= kept;
  for (let left = peer.share; left > 0; left -= settings.microBatch) {
    const samples = Array.from({ length: Math.min(left, settings.microBatch) }, () => drawOne(data.seen, peer.random));
    addGradient(settings.sizes, peer.weights, samples, peer.sums, peer.space);
    await turn(); // messages of the others come in
  }
  peer.counted += peer.share;
  peer.samples += peer.share;
  const factor = (switches.pace === "local" ? 1 : peer.factor) / peer.counted;
  return [peer.sums.map((sum) => factor * sum), peer.share];
}

function drawOne(items, random) {
  return items[Math.floor(random() * items.length)];
}

function step(peer, mean) {
  const { settings } = peer;
  adamStep(peer.adam, peer.weights, mean, rateFactor(peer.update, { warmup: settings.warmup, total: settings.updates }));
  end(peer, 1);
}

function end(peer, updates) {
  const before = peer.update;
  peer.update += updates;
  const { update, samples, share, exchange } = peer;
  self.postMessage({ kind: "update", update, samples, share, bytes: exchange.bytes });
  const { every } = peer.settings;
  if (Math.floor(before / every) !== Math.floor(update / every) && exchange.group[0] === exchange.own) tellLook(peer);
}

function tellLook(peer) {
  if (peer.exchange.group[0] !== peer.exchange.own) return;
  const seen = look(peer.settings, peer.weights, peer.data, peer.space);
  self.postMessage({ kind: "look", update: peer.update, ...seen }, [seen.pictures.buffer]);
}

const channel = new MessageChannel();
let go = () => {};
channel.port1.onmessage = () => go();

/** Resolves in a later task; timers would wait for 4 ms. */
function turn() {
  return new Promise((resolve) => {
    go = resolve;
    channel.port2.postMessage(null);
  });
}
