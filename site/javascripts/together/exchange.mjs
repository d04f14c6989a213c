// How the peers of this page average their vectors: an all-reduce over message ports, as in training/swarm/round.
//
// A vector is cut into as many parts as there are peers. Each peer sends part i to peer i, which averages the copies
// that it gets and sends the result to all. Messages between peers:
//
//   {kind: "alive"}                                      at each tick; a peer that is not heard of for long is gone
//   {kind: "gone", name}                                 the sender goes on without that peer
//   {kind: "part" or "mean", round, update, code, samples}   `round` names the update and the group
//   {kind: "done", update, mean}                         the answer to a part of an update that the sender has made

import { bytesOf, decode, encode, encodeWithFeedback, memoryOf } from "./codecs.mjs";
import { average } from "./averages.mjs";

const TICK_MS = 250;
/** A peer is gone after as many ticks without a message; before its first one, while it starts, it has more time. */
const SILENT_TICKS = 12;
const START_TICKS = 60;

/**
 * @typedef {object} Exchange
 * @property {string} own this peer's name
 * @property {string[]} group the peers that are there, in the same order everywhere
 * @property {Map<string, MessagePort>} ports to the others
 * @property {Map<string, number>} silent ticks since another was heard of; less than 0: it has not been yet
 * @property {Map<string, object>} inbox messages that nobody has asked for yet, by round, kind and sender
 * @property {{update: number, mean: Float32Array}} done the last average
 * @property {number} bytes sent so far, of parts and means
 * @property {Float32Array[]} left what 1-bit codes have left out: of this peer's vector, and of the averages that it makes
 * @property {() => void} wake called when something has come, or somebody is gone
 * @property {(name: string, ticks: number) => void} onSilence
 */

/** Opens the ports; `ports` maps names to them, and `names` has all peers. */
export function openExchange(own, names, ports, onSilence) {
  const silent = new Map([...ports.keys()].map((name) => [name, -START_TICKS]));
  const facts = { inbox: new Map(), done: { update: -1, mean: null }, bytes: 0, left: [], wake: () => {} };
  const exchange = { own, group: [...names], ports, silent, onSilence, ...facts };
  for (const [name, port] of ports) port.onmessage = ({ data }) => receive(exchange, name, data);
  exchange.timer = setInterval(() => tick(exchange), TICK_MS);
  return exchange;
}

function receive(exchange, from, message) {
  exchange.silent.set(from, 0);
  if (message.kind === "gone") leaveOut(exchange, message.name);
  else if (message.kind === "part" && message.update <= exchange.done.update) {
    // The others have repeated the round that this peer has ended: a peer was lost after its last message came here.
    exchange.ports.get(from).postMessage({ kind: "done", ...exchange.done });
  } else if (message.kind !== "alive") {
    exchange.inbox.set(`${message.round ?? message.update}/${message.kind}/${from}`, message);
    exchange.wake();
  }
}

/** Says that this peer is there, and goes on without those that have said nothing for long. */
function tick(exchange) {
  for (const name of exchange.group.filter((one) => one !== exchange.own)) {
    const ticks = exchange.silent.get(name) + 1;
    exchange.silent.set(name, ticks);
    exchange.ports.get(name).postMessage({ kind: "alive" });
    if (ticks > 1) exchange.onSilence(name, ticks > SILENT_TICKS);
    if (ticks > SILENT_TICKS) leaveOut(exchange, name);
  }
}

/** Goes on without a peer, and tells the others, so that all have the same group. */
function leaveOut(exchange, name) {
  if (!exchange.group.includes(name)) return;
  exchange.group = name === exchange.own ? [name] : exchange.group.filter((one) => one !== name);
  for (const port of exchange.ports.values()) port.postMessage({ kind: "gone", name });
  exchange.wake();
}

/**
 * The average of a vector over the group; if a peer is lost on the way, over those that are left.
 *
 * @param {Exchange} exchange
 * @param {number} update
 * @param {Float32Array} values
 * @param {number} samples by which this peer's vector counts
 * @param {{bits: number, sharesOf: Function}} way how values travel, and who counts how much
 */
export async function averaged(exchange, update, values, samples, way) {
  for (;;) {
    const mean = exchange.group.length > 1 ? await attempt(exchange, update, values, samples, way) : values;
    if (mean) {
      exchange.done = { update, mean };
      return mean;
    }
  }
}

/** One all-reduce; null if a peer of the group is lost. */
async function attempt(exchange, update, values, samples, way) {
  const group = exchange.group;
  const round = `${update}:${group}`;
  const place = group.indexOf(exchange.own);
  const ends = group.map((_, number) => Math.floor((values.length * (number + 1)) / group.length));
  const coded = group.map((_, number) => {
    const [from, to] = [ends[number - 1] ?? 0, ends[number]];
    return coder(exchange.left[0]?.subarray(from, to), values.subarray(from, to), way.bits);
  });
  const own = decode(coded[place].code).slice();
  group.forEach((name, number) => send(exchange, name, { kind: "part", round, update, samples, code: coded[number].code }));
  const parts = await collect(exchange, update, round, "part", group);
  if (!parts || parts.mean) return parts?.mean;
  const copies = parts.map((message) => (message ? decode(message.code) : own));
  const shares = way.sharesOf(copies, parts.map((message) => message?.samples ?? samples));
  const sum = average(copies, shares);
  const kept = exchange.left[1]?.length === sum.length ? exchange.left[1] : undefined;
  const result = coder(kept, sum, way.bits);
  const ownMean = decode(result.code).slice();
  for (const name of group) send(exchange, name, { kind: "mean", round, update, code: copyOf(result.code) });
  const means = await collect(exchange, update, round, "mean", group);
  if (!means || means.mean) return means?.mean;
  const mean = new Float32Array(values.length);
  means.forEach((message, number) => mean.set(message ? decode(message.code) : ownMean, ends[number - 1] ?? 0));
  if (way.bits === 1) exchange.left = [joined(coded.map(({ left }) => left), values.length), result.left];
  return mean;
}

/** A code, and with 1 bit what it leaves out; see `encodeWithFeedback`. */
function coder(left, values, bits) {
  return bits === 1 ? encodeWithFeedback(values, left ?? new Float32Array(values.length), bits) : { code: encode(values, bits) };
}

function joined(pieces, length) {
  const whole = new Float32Array(length);
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

/** A message hands its memory over, so each of several receivers needs a copy. */
function copyOf(code) {
  return { ...code, scales: code.scales.slice(), codes: code.codes.slice() };
}

function send(exchange, name, message) {
  if (name === exchange.own) return;
  exchange.bytes += bytesOf(message.code);
  exchange.ports.get(name).postMessage(message, memoryOf(message.code));
}

/**
 * Waits for a message of each other peer of a group; in its order, with undefined in this peer's place.
 *
 * Null if the group is no more; {mean} if another peer has made this update already.
 */
async function collect(exchange, update, round, kind, group) {
  for (;;) {
    for (const name of group) {
      const done = exchange.inbox.get(`${update}/done/${name}`);
      if (done) return { mean: done.mean };
    }
    if (exchange.group !== group) return null;
    const found = group.map((name) => exchange.inbox.get(`${round}/${kind}/${name}`));
    if (found.every((message, place) => message || group[place] === exchange.own)) {
      for (const name of group) exchange.inbox.delete(`${round}/${kind}/${name}`);
      return found;
    }
    await new Promise((resolve) => (exchange.wake = resolve));
  }
}

/** Stops listening. */
export function closeExchange(exchange) {
  clearInterval(exchange.timer);
  for (const port of exchange.ports.values()) port.close();
}
