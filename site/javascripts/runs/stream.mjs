// The stream of a live run's states, from the monitor's /live/events. It only saves requests and time: a page without a
// stream, because the monitor has too many readers, asks for the state at intervals.

import { isDocument } from "./documents.mjs";

/** A stream sends a state at least every four seconds; after this time without one, the page asks for it. */
const FRESH_SECONDS = 7;
/** After a failure the next stream is not opened sooner, so that a busy server gets no more requests. */
const AGAIN_SECONDS = 20;

/**
 * @typedef {object} Stream
 * @property {(state: object) => void} onState gets each state as it comes
 * @property {EventSource | null} source
 * @property {number} heardAt time of the last state, in seconds
 * @property {number} againAt no stream is opened before this time
 */

/** @returns {Stream} one that is not open yet */
export function makeStream(onState) {
  return { onState, source: null, heardAt: 0, againAt: 0 };
}

/** Opens a run's stream unless it is open, or has just failed. */
export function openStream(stream, { base }, now) {
  if (stream.source || now < stream.againAt || typeof EventSource === "undefined") return;
  stream.source = new EventSource(new URL("live/events", base));
  stream.source.addEventListener("state", ({ data }) => {
    const state = JSON.parse(data);
    if (!isDocument("state.json", state)) return;
    stream.heardAt = Date.now() / 1000;
    stream.onState(state);
  });
  // EventSource would try again by itself, also a server that is gone: the page's own questions notice when it is back.
  stream.source.addEventListener("error", () => {
    stream.againAt = Date.now() / 1000 + AGAIN_SECONDS;
    closeStream(stream);
  });
}

export function closeStream(stream) {
  stream.source?.close();
  stream.source = null;
}

/** Whether the stream tells the newest state, so that the page need not ask. */
export function isFresh(stream, now) {
  return Boolean(stream.source) && now - stream.heardAt < FRESH_SECONDS;
}
