// Questions to the worker with Python: a known answer is not asked for again, and failures are reported.

import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";

const workers = [];

/** A worker that records messages, and answers only when a test calls `says`. */
globalThis.Worker = class {
  posted = [];
  ended = false;
  constructor(url, { name }) {
    this.name = name;
    workers.push(this);
  }
  postMessage(data) {
    this.posted.push(data);
  }
  terminate() {
    this.ended = true;
  }
  says(data) {
    this.onmessage({ data });
  }
};
globalThis.document = { baseURI: "https://site.example/calculator/" };

const { answerAhead, askPython, startedBy } = await import("../../../../site/javascripts/python/python.mjs");
const RUNTIME = { folder: "../runtime/1/", lock: {}, snapshot: "" };
let count = 0;

/** Asks a new question; returns it with the newest worker, which has started and has not answered yet. */
function asked() {
  const request = { count: ++count };
  const answer = askPython(RUNTIME, "answer", request);
  const worker = workers.at(-1);
  if (!startedBy()) worker.says({ started: "snapshot" });
  return { worker, request, answer, id: worker.posted.at(-1).id };
}

beforeEach(() => {
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout"] });
});

test("the same question is answered without the worker", async () => {
  const { worker, request, answer, id } = asked();
  worker.says({ id, answer: '{"total": 7}' });
  assert.deepEqual(await answer, { total: 7 });
  const posted = worker.posted.length;
  assert.deepEqual(await askPython(RUNTIME, "answer", request), { total: 7 });
  assert.equal(worker.posted.length, posted);
  assert.equal(JSON.parse(worker.name).folder, "https://site.example/runtime/1/");
});

test("an answer that was computed ahead is used, and is computed once", async () => {
  const { worker, id } = asked();
  worker.says({ id, answer: "{}" });
  answerAhead([{ ahead: 1 }, { ahead: 1 }, { ahead: 2 }]);
  assert.deepEqual(worker.posted.at(-1), { ahead: ['{"ahead":1}', '{"ahead":2}'] });
  worker.says({ ahead: [['{"ahead":1}', '{"total": 1}']] });
  const posted = worker.posted.length;
  assert.deepEqual(await askPython(RUNTIME, "answer", { ahead: 1 }), { total: 1 });
  assert.equal(worker.posted.length, posted);
});

test("answers of other functions are not kept", async () => {
  const { worker, id } = asked();
  worker.says({ id, answer: "{}" });
  for (const total of [1, 2]) {
    const advice = askPython(RUNTIME, "advise", {});
    worker.says({ id: worker.posted.at(-1).id, answer: JSON.stringify({ total }) });
    assert.deepEqual(await advice, { total });
  }
});

test("a failure ends one question only", async () => {
  const { worker, answer, id } = asked();
  const next = asked();
  worker.says({ id, failed: "MemoryError" });
  await assert.rejects(answer, /^Error: MemoryError$/);
  next.worker.says({ id: next.id, answer: "{}" });
  assert.deepEqual([await next.answer, worker.ended], [{}, false]);
});

test("after twenty seconds without an answer Python is ended, and the next question starts it again", async () => {
  const { worker, answer } = asked();
  const refused = assert.rejects(answer, /no answer within 20 s/);
  mock.timers.tick(20_000);
  await refused;
  assert.deepEqual([worker.ended, startedBy()], [true, ""]);
  const next = asked();
  assert.notEqual(next.worker, worker);
  next.worker.says({ id: next.id, answer: "{}" });
  await next.answer;
});

test("a question with a limit ends Python after it, and if it fails", async () => {
  for (const fails of [({ worker, id }) => worker.says({ id, failed: "RangeError" }), () => mock.timers.tick(5_000)]) {
    const { worker, answer, id } = asked();
    worker.says({ id, answer: "{}" });
    await answer;
    const limited = assert.rejects(askPython(RUNTIME, "grade", {}, 5_000));
    mock.timers.tick(4_999);
    assert.equal(worker.ended, false);
    fails({ worker, id: worker.posted.at(-1).id });
    await limited;
    assert.deepEqual([worker.ended, startedBy()], [true, ""]);
  }
});

test("a failed start of Python ends all questions; the time limit does not include the start", async () => {
  const { worker, answer } = asked();
  const ended = assert.rejects(answer);
  mock.timers.tick(20_000);
  await ended;
  const waiting = askPython(RUNTIME, "answer", { count: ++count });
  mock.timers.tick(60_000);
  assert.equal(workers.at(-1).ended, false);
  const refused = assert.rejects(waiting, /Python did not start/);
  workers.at(-1).onerror();
  await refused;
  assert.ok(worker.ended && workers.at(-1).ended);
});
