// The documents of a run, from its monitor or its record. A monitor may be anybody's, so each document is checked before
// a page uses it: its values have the expected types, and no text is endless. Pages then show texts as text only.

const ANSWER_WITHIN_SECONDS = 10;
const LONGEST_TEXT = 10_000;

const text = (value) => typeof value === "string" && value.length <= LONGEST_TEXT;
const number = (value) => Number.isFinite(value) && Math.abs(value) < 1e15;
const maybe = (check) => (value) => value === undefined || value === null || check(value);
const list = (check) => (value) => Array.isArray(value) && value.every(check);
const record = (checks) => (value) => typeof value === "object" && value !== null && Object.entries(checks).every(([name, check]) => check(value[name]));

const RUN = record({
  run_id: text, title: text, total_epochs: number, kind: maybe(text), description: maybe(text), join_command: maybe(text),
  recipe_digest: maybe(text), parameters: maybe(number), least_memory_bytes: maybe(number), sent_bytes: maybe(number),
  reconstruction_error: maybe(number),
});

const time = (value) => number(value) && Math.abs(value) < 1e11;
const CONTRIBUTION = { samples: number, seconds: number, share: maybe(number) };

/** Check of each document. A document may hold more than its check names. */
const CHECKS = {
  "run.json": (value) => record({})(value) && (!("run_id" in value) || RUN(value)), // empty: the site has no run
  "state.json": record({
    time: number, status: text, cause: maybe(text), remedy: maybe(text), epoch: maybe(number), loss: maybe(number),
    active_peers: number, total_samples: number, samples_per_second: maybe(number), last_epoch_at: maybe(number),
    updated_every_seconds: maybe((value) => number(value) && value >= 0.1),
  }),
  "history.json": record({
    epochs: list(record({ epoch: number, loss: maybe(number), active_peers: number, samples_per_second: maybe(number) })),
    held_out: maybe(list(record({ epoch: number, loss: number, samples: number, tokens: number, clip_score: maybe(number) }))),
  }),
  "losses.json": record({
    peers: (peers) => record({})(peers) && Object.values(peers).every(list(list(maybe(number)))),
  }),
  "leaderboard.json": record({
    total: maybe(number), hours: maybe(number), contributors: maybe(number), least_seconds: maybe(number),
    volunteers: list(record({
      ...CONTRIBUTION, name: text, page: maybe(text), last_seen: number, samples_per_second: maybe(number),
    })),
  }),
  volunteer: record({
    ...CONTRIBUTION, name: text, title: maybe(text), first_seen: time, last_seen: time, machines: number,
    periods: list(record({ ...CONTRIBUTION, hours: maybe(number), rank: maybe(number) })),
    missed: (value) => record({})(value) && Object.values(value).every(number),
    recent: list(record({ epoch: number, time, samples: number, missed: maybe(text) })),
  }),
  "pictures.json": record({
    snapshots: list(record({ epoch: number, pictures: list(record({ prompt: text, file: maybe(text), text: maybe(text) })) })),
  }),
  "events.json": record({
    events: list(record({ time, name: text, kind: text, text })),
  }),
};

/** Whether a value is a document of this name; each volunteer has one of its own. */
export function isDocument(name, value) {
  return CHECKS[name.startsWith("volunteers/") ? "volunteer" : name](value);
}

function parsed(json) {
  try {
    return JSON.parse(json);
  } catch {
    return null;
  }
}

/**
 * Asks for a document; resolves to it and the headers of the answer.
 *
 * @param {Run} run see address.mjs
 * @param {string} path the document's name, with a query if a part of it is enough
 * @throws an error with `status` if the server answers with another document: 200 if it is not a run's
 */
export async function ask({ base }, path) {
  const response = await fetch(new URL(`live/${path}`, base), {
    cache: "no-cache",
    signal: AbortSignal.timeout(ANSWER_WITHIN_SECONDS * 1000),
  });
  const { status, headers } = response;
  if (!response.ok) throw Object.assign(new Error(`${path}: ${status}`), { status });
  const document = parsed(await response.text());
  if (!isDocument(path.split("?")[0], document)) throw Object.assign(new Error(`${path}: not a run's`), { status });
  return { document, headers };
}
