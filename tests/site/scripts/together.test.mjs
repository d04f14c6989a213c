// The peers of the page Train together: how they average, and go on without one of them.

import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { meanShares } from "../../../site/javascripts/together/averages.mjs";
import { averaged, closeExchange, openExchange } from "../../../site/javascripts/together/exchange.mjs";
import { heightOf, pathOf, recordedName } from "../../../site/javascripts/together/page.mjs";

const NAMES = ["ada", "grace", "alan"];
const VALUES = { ada: [1, 2, 3, 4, 5], grace: [3, 2, 1, 0, -1], alan: [-1, 5, 2, 2, 2] };
const SAMPLES = { ada: 10, grace: 30, alan: 40 };
const PLAIN = { bits: 32, sharesOf: meanShares };

/** Exchanges of three peers, with what they have noticed. */
function three() {
  const ports = Object.fromEntries(NAMES.map((name) => [name, new Map()]));
  NAMES.forEach((one, place) => {
    for (const other of NAMES.slice(place + 1)) {
      const { port1, port2 } = new MessageChannel();
      ports[one].set(other, port1);
      ports[other].set(one, port2);
    }
  });
  const gone = [];
  const exchanges = NAMES.map((name) => openExchange(name, NAMES, ports[name], (other, over) => over && gone.push(`${name}: ${other}`)));
  return { ...Object.fromEntries(exchanges.map((one) => [one.own, one])), all: exchanges, gone };
}

function own(exchange, update, way = PLAIN) {
  return averaged(exchange, update, Float32Array.from(VALUES[exchange.own]), SAMPLES[exchange.own], way);
}

function meanOf(names) {
  const total = names.reduce((sum, name) => sum + SAMPLES[name], 0);
  return VALUES.ada.map((_, at) => names.reduce((sum, name) => sum + (SAMPLES[name] / total) * VALUES[name][at], 0));
}

function assertNear(found, wanted) {
  found.forEach((value, at) => assert.ok(Math.abs(value - wanted[at]) < 1e-6, `${found} is not ${wanted}`));
}

/** Lets messages come in; timers are the test's. */
async function settle() {
  for (let turns = 0; turns < 20; turns++) await new Promise((resolve) => setImmediate(resolve));
}

test("all peers get the same mean, weighted by samples", async () => {
  const peers = three();
  const means = await Promise.all(peers.all.map((one) => own(one, 0)));
  for (const mean of means) assertNear(mean, meanOf(NAMES));
  // Of 5 values each peer sends the others' parts, then two copies of the mean of its own.
  assert.deepEqual(peers.all.map(({ bytes }) => bytes), [4 * (4 + 2), 4 * (3 + 4), 4 * (3 + 4)]);
  peers.all.forEach(closeExchange);
});

test("in 8 bits and in 1 bit all peers still get the same vector", async () => {
  for (const bits of [8, 1]) {
    const peers = three();
    for (const update of [0, 1, 2]) {
      const [first, ...others] = await Promise.all(peers.all.map((one) => own(one, update, { ...PLAIN, bits })));
      for (const other of others) assert.deepEqual(other, first);
    }
    peers.all.forEach(closeExchange);
  }
});

test("without a peer that says nothing for long the others repeat the average", async () => {
  mock.timers.enable({ apis: ["setInterval"] });
  const peers = three();
  mock.timers.tick(250); // all have heard of each other
  await settle();
  closeExchange(peers.alan);
  const under = [own(peers.ada, 0), own(peers.grace, 0)];
  for (let ticks = 0; ticks < 15; ticks++) {
    await settle();
    assert.equal(peers.gone.length > 0, ticks > 12, `after ${ticks} ticks`);
    mock.timers.tick(250);
  }
  for (const mean of await Promise.all(under)) assertNear(mean, meanOf(["ada", "grace"]));
  assert.deepEqual([peers.ada.group, peers.grace.group], [["ada", "grace"], ["ada", "grace"]]);
  peers.all.forEach(closeExchange);
  mock.timers.reset();
});

test("a peer that is slow to start is waited for", async () => {
  mock.timers.enable({ apis: ["setInterval"] });
  const peers = three();
  clearInterval(peers.alan.timer); // it says nothing yet
  const under = [own(peers.ada, 0), own(peers.grace, 0)];
  mock.timers.tick(40 * 250);
  await settle();
  assert.deepEqual(peers.gone, []);
  for (const mean of await Promise.all([...under, own(peers.alan, 0)])) assertNear(mean, meanOf(NAMES));
  peers.all.forEach(closeExchange);
  mock.timers.reset();
});

test("a peer that has an average already gives it to one that repeats it", async () => {
  const peers = three();
  peers.ada.done = { update: 4, mean: Float32Array.from([9, 9, 9, 9, 9]) };
  assertNear(await own(peers.grace, 4), [9, 9, 9, 9, 9]);
  peers.all.forEach(closeExchange);
});

test("a run was recorded with the same switches, or with none", () => {
  const runs = { plain: { switches: {} }, "hostile-clip": { switches: { hostile: true, clip: true } }, drop: { switches: { drop: true } } };
  const first = { bits: 32, pace: "awaited", hostile: "", clip: false };
  assert.equal(recordedName(runs, first, ""), "plain");
  assert.equal(recordedName(runs, first, "grace"), "drop");
  assert.equal(recordedName(runs, { ...first, hostile: "alan", clip: true }, ""), "hostile-clip");
  assert.equal(recordedName(runs, { ...first, bits: 1 }, ""), undefined);
});

test("a curve stays within the plot", () => {
  assert.deepEqual([1, 0.1, 0.01, 5, 0].map((loss) => Math.round(heightOf(loss, [0.01, 1]))), [0, 50, 100, 0, 100]);
  assert.equal(pathOf([[0, 1], [4, 0.1]], [0.01, 1]), "M0 0.00L4 50.00");
  assert.equal(pathOf([], [0.01, 1]), "");
});
