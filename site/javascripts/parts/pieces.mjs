// Long work in short tasks: in between, the browser answers the reader and paints.

let last = Promise.resolve();

/** Resolves in a task of its own, after the browser had its turn. */
export function nextTask() {
  return globalThis.scheduler?.yield ? globalThis.scheduler.yield() : new Promise((resolve) => setTimeout(resolve));
}

/** Resolves in a task after the next frame: what was made so far is then laid out and painted, apart from what follows. */
export function nextFrame() {
  return new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
}

/** Runs a piece of work in a task of its own, after all pieces that were given earlier; resolves to its result. */
export function inOwnTask(work) {
  const done = last.then(nextTask).then(work);
  last = done.catch(() => {});
  return done;
}
