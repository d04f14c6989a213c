// The page Train together: starts three peers in workers, and shows what they say. The peers talk to each other over
// message channels that this page opens; it sees none of what they send.

import { siteURL } from "../address.mjs";
import { showCount, showNumber } from "../parts/format.mjs";

/**
 * @typedef {object} Together
 * @property {HTMLElement} figure
 * @property {object} setup settings, drawings, runs, axis, peers; see site/builder/learn/together.py
 * @property {Map<string, object>} peers by name: worker, the last update that it has told of, and bytes before it
 * @property {[number, number][]} points updates and losses of this page's run
 * @property {[number, number][]} earlier those of the last one
 * @property {object | null} look what the model has learned; see look.mjs
 * @property {number} began time of the start; 0: nothing runs
 * @property {string} dropped name of a peer that the reader has ended
 * @property {number} frame the next drawing; 0: nothing has changed
 */

/** Starts the figure; returns what stops it. */
export function start(figure) {
  const setup = JSON.parse(figure.dataset.setup);
  setup.drawings.masks = setup.drawings.masks.map((text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)));
  const together = { figure, setup, peers: new Map(), points: [], earlier: [], look: null, began: 0, dropped: "", frame: 0 };
  slot(figure, "start").addEventListener("click", () => train(together));
  figure.querySelector(".figure__controls").addEventListener("change", () => onSwitch(together));
  for (const name of setup.peers) {
    slot(peerElement(together, name), "drop").addEventListener("click", () => drop(together, name));
  }
  showRecorded(together);
  return () => end(together);
}

function slot(element, name) {
  return element.querySelector(`[data-slot=${name}]`);
}

function peerElement({ figure }, name) {
  return figure.querySelector(`[data-peer=${name}]`);
}

/** What the reader has chosen; see peer.mjs. */
function switchesOf({ figure }) {
  const chosen = Object.fromEntries([...figure.querySelectorAll("input:checked")].map(({ name, value }) => [name, value]));
  return { bits: Number(chosen.bits), pace: chosen.pace, hostile: chosen.hostile, clip: Boolean(chosen.clip) };
}

/** A run that goes on begins anew with other switches. */
function onSwitch(together) {
  showRecorded(together);
  if (together.began) train(together);
}

function train(together) {
  const { figure, setup } = together;
  end(together);
  if (together.points.length) together.earlier = together.points;
  Object.assign(together, { points: [], look: null, began: performance.now(), dropped: "" });
  const switches = switchesOf(together);
  const ports = connect(setup.peers);
  for (const name of setup.peers) {
    const worker = new Worker(siteURL("javascripts/together/peer.mjs"), { type: "module", name });
    together.peers.set(name, { worker, last: null, sent: 0, doing: "computes" });
    worker.onmessage = ({ data }) => onMessage(together, name, data);
    worker.onerror = () => fail(together);
    const { settings, drawings } = setup;
    worker.postMessage({ own: name, names: setup.peers, ports: ports[name], settings, drawings, switches }, ports[name]);
    slot(peerElement(together, name), "drop").disabled = false;
  }
  slot(figure, "start").textContent = "Train again";
  say(together, "The peers train.");
  showRecorded(together);
}

/** A channel between each two peers. Returns the ports of each, in the order of the others' names. */
function connect(names) {
  const ports = Object.fromEntries(names.map((name) => [name, []]));
  names.forEach((one, place) => {
    for (const other of names.slice(place + 1)) {
      const { port1, port2 } = new MessageChannel();
      ports[one].push(port1);
      ports[other].push(port2);
    }
  });
  return ports;
}

function onMessage(together, name, message) {
  const peer = together.peers.get(name);
  if (!peer) return; // from a worker that has been ended
  if (message.kind === "update") {
    Object.assign(peer, { before: peer.last, last: message, doing: name === switchesOf(together).hostile ? "is hostile" : "computes" });
  } else if (message.kind === "silence") onSilence(together, peer, message);
  else if (message.kind === "look") {
    together.points.push([message.update, message.loss]);
    together.look = message;
  } else if (message.kind === "end") onEnd(together, peer);
  together.frame ||= requestAnimationFrame(() => show(together));
}

function onSilence(together, peer, { name, gone }) {
  if (peer.doing !== "is done") peer.doing = gone ? `goes on without ${title(name)}` : `waits for ${title(name)}`;
  if (gone && together.peers.has(name)) drop(together, name, "is left out: the others heard nothing of it");
}

/** Ends a peer's worker, in the middle of whatever it does; the others are not told. */
function drop(together, name, doing = "is gone: its worker has been ended") {
  together.peers.get(name)?.worker.terminate();
  together.peers.delete(name);
  together.dropped = name;
  const element = peerElement(together, name);
  slot(element, "drop").disabled = true;
  slot(element, "doing").textContent = doing;
  if (!together.peers.size) {
    together.began = 0;
    say(together, "Nobody is left. The model of the last update is gone with them.");
  }
  showRecorded(together);
}

function onEnd(together, peer) {
  peer.doing = "is done";
  if ([...together.peers.values()].some(({ doing }) => doing !== "is done")) return;
  const { setup, look, began, peers } = together;
  const seconds = ((performance.now() - began) / 1000).toFixed(1);
  together.began = 0;
  for (const name of peers.keys()) slot(peerElement(together, name), "drop").disabled = true;
  say(together, `Done: ${setup.settings.updates} updates in ${seconds} s, loss ${showNumber(look.loss, 2)}.`);
}

function fail(together) {
  end(together);
  say(together, "This browser does not start workers that are modules, so the peers cannot train here.");
}

/** Ends all workers. */
function end(together) {
  cancelAnimationFrame(together.frame);
  for (const [name, { worker }] of together.peers) {
    worker.terminate();
    slot(peerElement(together, name), "drop").disabled = true;
  }
  together.peers.clear();
  Object.assign(together, { began: 0, frame: 0 });
}

function say({ figure }, words) {
  slot(figure, "state").textContent = words;
}

/** Draws what has come since the last frame. */
function show(together) {
  const { figure, setup, look } = together;
  together.frame = 0;
  for (const [name, peer] of together.peers) showPeer(peerElement(together, name), peer, setup);
  if (!look) return;
  slot(figure, "own").setAttribute("d", pathOf(together.points, setup.axis));
  slot(figure, "earlier").setAttribute("d", pathOf(together.earlier, setup.axis));
  slot(figure, "right").textContent = `Update ${look.update} of ${setup.settings.updates}: ${rightWords(look, setup)}`;
  slot(figure, "plot").ariaLabel = `Loss of this page’s peers: ${showNumber(look.loss, 2)} after ${look.update} updates`;
  const canvas = figure.querySelector("canvas");
  if (look.pictures) canvas.getContext("2d").putImageData(new ImageData(look.pictures, canvas.width), 0, 0);
  look.pictures = null;
  figure.querySelector("img").hidden = true;
  canvas.hidden = false;
}

function showPeer(element, { last, before, doing }, { settings }) {
  slot(element, "doing").textContent = doing;
  if (!last) return;
  const sent = last.bytes - (before?.bytes ?? 0);
  slot(element, "share").textContent = `${last.share} of ${settings.batch} samples a batch`;
  slot(element, "samples").textContent = `${showCount(last.samples)} samples so far`;
  slot(element, "bytes").textContent = `${showCount(sent / 1000)} kB sent in an exchange`;
}

/** Shows the recorded run with the reader's switches, and why it differs. */
function showRecorded(together) {
  const { figure, setup } = together;
  const name = recordedName(setup.runs, switchesOf(together), together.dropped);
  slot(figure, "recorded").setAttribute("d", name ? pathOf(setup.runs[name].losses, setup.axis) : "");
  for (const line of figure.parentElement.querySelectorAll("[data-why]")) {
    line.classList.toggle("now", line.dataset.why === (name ?? "none"));
  }
}

/** The recorded run that has been made with the same switches; undefined if none has. */
export function recordedName(runs, { bits, pace, hostile, clip }, dropped) {
  const wanted = JSON.stringify([bits, pace, Boolean(hostile), clip, Boolean(dropped)]);
  return Object.keys(runs).find((name) => {
    const of = { bits: 32, pace: "awaited", hostile: false, clip: false, drop: false, ...runs[name].switches };
    return JSON.stringify([of.bits, of.pace, of.hostile, of.clip, of.drop]) === wanted;
  });
}

/** A line through updates and losses, in the units of the plot. */
export function pathOf(points, axis) {
  return points.length ? `M${points.map(([update, loss]) => `${update} ${heightOf(loss, axis).toFixed(2)}`).join("L")}` : "";
}

/** Place of a loss in the plot, in percent from the top. */
export function heightOf(loss, [low, high]) {
  const shown = Math.min(Math.max(loss, low), high);
  return (100 * Math.log(high / shown)) / Math.log(high / low);
}

function rightWords({ right, rightUnseen }, { drawings: { colours, masks, unseen } }) {
  const seen = colours.length * masks.length - unseen.length;
  return `${right} of ${seen} pictures are right, and ${rightUnseen} of ${unseen.length} that it never trains on.`;
}

function title(name) {
  return name[0].toUpperCase() + name.slice(1);
}
