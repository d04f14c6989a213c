// Which run the pages show. `?run=` names it: a run of runs.json, or the address of any monitor. Without it the pages
// show the run of the monitor that serves them; else the first run of runs.json that is live; else this site's record.

import { siteURL } from "../address.mjs";
import { isOver } from "./feed.mjs";
import { keyIn, OWN, runAt, withRun } from "./address.mjs";
import { ask } from "./documents.mjs";

/** Page's address -> its run, while that is looked for. */
const looking = new Map();

/** The run that this page shows; resolves to the same for all parts of the page. */
export function chosenRun() {
  const { href } = location;
  if (!looking.has(href)) looking.set(href, look(href).finally(() => looking.delete(href)));
  return looking.get(href);
}

async function look(href) {
  const key = keyIn(href);
  const listed = await listedRuns(href);
  if (key) return withRecord(listed.find((run) => run.key === key) ?? runAt(key, href));
  if (!listed.length || (await hasMonitor(OWN))) return OWN;
  // All are asked at once; of those that are live, the first counts.
  const asked = listed.map((run) => isLive(run));
  for (const [place, answer] of asked.entries()) {
    if (await answer) {
      if (location.href === href) history.replaceState(history.state, "", withRun(href, listed[place]));
      return listed[place];
    }
  }
  return OWN;
}

/** The runs of runs.json. */
export async function listedRuns(page) {
  const entries = await fetch(siteURL("runs.json"), { cache: "no-cache" }).then((answer) => answer.json()).catch(() => []);
  return entries.map(({ title, monitor, record }) => {
    const base = record && new URL(record, siteURL("")).href;
    return monitor ? { ...runAt(monitor, page), title, record: base } : { key: record, base, title };
  });
}

/** A run with a record is shown from it while its monitor does not answer. */
async function withRecord(run) {
  if (!run.record || (await isThere(run))) return run;
  return { ...run, base: run.record };
}

const isThere = (run) => ask(run, "run.json").then(() => true, () => false);

/** Whether a monitor answers for a run. A record has no command to join. */
export async function hasMonitor(run) {
  return ask(run, "run.json").then(({ document }) => Boolean(document.join_command), () => false);
}

async function isLive(run) {
  if (run.fault) return false;
  return ask(run, "state.json").then(({ document }) => Boolean(document.stream) && !isOver({ state: document }), () => false);
}
