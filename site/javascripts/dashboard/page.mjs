// The dashboard: a run as it goes on, or as it was recorded.

import { colour, makeChart, makeTable, plain } from "./charts.mjs";
import { showClock, showCount, showDuration, showNumber } from "./format.mjs";
import { describe, followRun, isOver, siteURL } from "./live.mjs";

/** In the table of pictures; at phones' widths both are less, and two columns fit. */
const PROMPT_WIDTH = 120;
const PICTURE_WIDTH = 130;

const DOCUMENTS = ["losses", "leaderboard", "pictures", "events"];
const SERIES = 8;
const TABLE_ROWS = 500;

export function start(root) {
  const slot = (name) => root.querySelector(`[data-slot="${name}"]`);
  const library = new URL(root.dataset.plotly, document.baseURI).href;
  let feed = null;
  let announced = "";

  const names = () => [...new Set([...feed.volunteers.map((one) => one.name), ...Object.keys(feed.peers)])];
  const seriesColour = (name) => colour(`series-${(firstSeen(name) % SERIES) + 1}`);
  const seen = [];
  function firstSeen(name) {
    if (!seen.includes(name)) seen.push(name);
    return seen.indexOf(name);
  }

  const line = (y) => ({ x: feed.epochs.map((row) => row.epoch), y: feed.epochs.map((row) => row[y]), mode: "lines" });
  const onceKnown = (traces) => () => (feed?.phase === "known" ? traces() : null);
  const charts = [
    makeChart(slot("loss-chart"), {
      plotly: library,
      axes: { x: "Epoch", y: "Loss" },
      traces: onceKnown(() => [
        ...Object.entries(feed.peers).map(([name, points]) => ({
          x: points.map((point) => point[0]),
          y: points.map((point) => point[1]),
          name: plain(name),
          mode: points.length > 1 ? "lines" : "markers",
          line: { color: seriesColour(name), width: 1.2 },
          opacity: 0.75,
        })),
        { ...line("loss"), name: "all", line: { color: colour("ink"), width: 2.6 } },
      ]),
    }),
    makeChart(slot("peers-chart"), {
      plotly: library,
      axes: { x: "Epoch", y: "Volunteers" },
      from: 0,
      traces: onceKnown(() => [
        { ...line("active_peers"), name: "volunteers", line: { color: colour("series-1"), shape: "hv", width: 2 }, fill: "tozeroy", fillcolor: colour("shade") },
      ]),
    }),
    makeChart(slot("speed-chart"), {
      plotly: library,
      axes: { x: "Epoch", y: "Samples/s" },
      from: 0,
      traces: onceKnown(() => [{ ...line("samples_per_second"), name: "samples per second", line: { color: colour("series-2"), width: 2 } }]),
    }),
  ];
  const newestFirst = () => feed.epochs.slice(-TABLE_ROWS).reverse();
  const tables = [
    makeTable(slot("loss-table"), () => {
      const people = Object.keys(feed.peers);
      const losses = new Map(people.map((name) => [name, new Map(feed.peers[name])]));
      return {
        head: ["Epoch", "All", ...people],
        body: newestFirst().map((row) => [
          row.epoch, showNumber(row.loss, 4), ...people.map((name) => showNumber(losses.get(name).get(row.epoch), 4)),
        ]),
      };
    }),
    makeTable(slot("peers-table"), () => ({
      head: ["Epoch", "Time", "Volunteers", "Samples", "Samples per second"],
      body: newestFirst().map((row) => [
        row.epoch, showClock(row.time), row.active_peers, showCount(row.samples), showNumber(row.samples_per_second),
      ]),
    })),
  ];

  function show(news) {
    feed = news;
    if (feed.phase === "loading") return;
    const { kind, label, text } = describe(feed);
    slot("status").dataset.kind = kind;
    slot("status-label").textContent = label;
    slot("status-text").textContent = text;
    slot("age").textContent = feed.phase === "known" && !isOver(feed) ? `Last update ${showDuration(feed.age)} ago` : "";
    if (announced !== kind) {
      announced = kind;
      slot("announce").textContent = text;
    }
    slot("empty").hidden = feed.phase !== "none";
    slot("run").classList.toggle("hidden", feed.phase !== "known");
    if (feed.phase !== "known" || !feed.changed) return;
    showTiles();
    charts.forEach((chart) => chart.draw());
    tables.forEach((fill) => fill());
    showSummary();
    showPictures();
    showBoard();
    showEvents();
  }

  function showTiles() {
    const { run, state } = feed;
    slot("title").textContent = run.title;
    slot("epoch").textContent = state.epoch === null ? "–" : `${showCount(state.epoch)} of ${showCount(run.total_epochs)}`;
    slot("loss").textContent = showNumber(state.loss);
    slot("active").textContent = showCount(state.active_peers);
    slot("speed").textContent = showNumber(state.samples_per_second);
    slot("samples").textContent = showCount(state.total_samples);
    slot("parameters").textContent = run.parameters ? showCount(run.parameters) : "–";
    slot("progress").max = run.total_epochs;
    slot("progress").value = state.epoch ?? 0;
  }

  function showSummary() {
    const known = feed.epochs.filter((row) => row.loss !== null);
    if (!known.length) return;
    const [first, last] = [known[0], known.at(-1)];
    slot("loss-chart").setAttribute(
      "aria-label",
      `Loss per epoch: ${showNumber(first.loss)} at epoch ${first.epoch}, ${showNumber(last.loss)} at epoch ${last.epoch}, ` +
        `with a line for each of ${names().length} volunteers.`,
    );
  }

  slot("pictures-all").addEventListener("click", ({ target }) => {
    target.setAttribute("aria-pressed", target.getAttribute("aria-pressed") !== "true");
    showPictures();
  });
  const wider = new ResizeObserver(() => feed?.phase === "known" && showPictures());
  wider.observe(slot("pictures").closest(".scroll"));

  function showPictures() {
    const table = slot("pictures");
    const all = slot("pictures-all");
    const room = Math.max(2, Math.floor((table.closest(".scroll").clientWidth - PROMPT_WIDTH) / PICTURE_WIDTH));
    const whole = all.getAttribute("aria-pressed") === "true";
    const snapshots = spread(feed.snapshots, whole ? feed.snapshots.length : room).reverse();
    const state = JSON.stringify(snapshots.map((snapshot) => snapshot.epoch));
    all.hidden = feed.snapshots.length <= room;
    all.textContent = `Pictures of all ${feed.snapshots.length} epochs`;
    if (table.dataset.state === state) return;
    table.dataset.state = state;
    slot("pictures-text").textContent = snapshots.length
      ? "The same prompts, drawn again as the run goes on; the newest stand first. A tick says that shape or colour is as the prompt asks, by a rule that looks at the pixels; stray things beside it count as wrong."
      : "No picture was drawn yet: the first ones come with the first checkpoint.";
    const prompts = [...new Set(snapshots.flatMap((snapshot) => snapshot.pictures.map((picture) => picture.prompt)))];
    const head = element("thead", [
      element("tr", [heading("Prompt", "col"), ...snapshots.map((snapshot) => heading(`epoch ${snapshot.epoch}`, "col"))]),
    ]);
    const body = prompts.map((prompt) =>
      element("tr", [
        heading(prompt, "row"),
        ...snapshots.map((snapshot) =>
          element("td", snapshot.pictures.filter((picture) => picture.prompt === prompt).map((picture) => drawn(picture, snapshot.epoch))),
        ),
      ]),
    );
    table.replaceChildren(...(snapshots.length ? [head, element("tbody", body)] : []));
  }

  function showBoard() {
    slot("board").replaceChildren(
      ...feed.volunteers.map((one) => {
        const name = heading("", "row");
        const mark = element("span", []);
        mark.className = "swatch";
        mark.style.setProperty("--swatch", `var(--series-${(firstSeen(one.name) % SERIES) + 1})`);
        name.append(mark, one.name);
        const now = one.active
          ? one.samples_per_second === null ? "active" : `${showNumber(one.samples_per_second)} samples/s`
          : isOver(feed) ? "gone" : `gone ${showDuration(feed.now - one.last_seen)} ago`;
        const cells = [showCount(one.samples), one.share === null ? "–" : `${Math.round(100 * one.share)} %`, showDuration(one.seconds), now];
        const line = element("tr", [name, ...cells.map((text) => element("td", [text]))]);
        line.dataset.active = one.active;
        return line;
      }),
    );
  }

  function showEvents() {
    const list = slot("events");
    const saved = feed.events.findLast((event) => event.kind === "checkpoint");
    const told = feed.events.filter((event) => event.kind !== "checkpoint" || event === saved);
    const events = told.reverse().slice(0, 100);
    const state = JSON.stringify(events[0] ?? null) + events.length;
    if (list.dataset.state === state) return;
    list.dataset.state = state;
    list.replaceChildren(
      ...events.map((event) => {
        const time = element("time", [showClock(event.time)]);
        time.dateTime = new Date(event.time * 1000).toISOString();
        const line = element("li", [time, " ", event.name ? element("strong", [event.name]) : "", event.name ? " " : "", event.text]);
        line.dataset.kind = event.kind;
        return line;
      }),
    );
    if (!events.length) list.replaceChildren(element("li", ["Nothing yet."]));
  }

  const stopFollowing = followRun(show, { documents: DOCUMENTS });
  return () => {
    stopFollowing();
    charts.forEach((chart) => chart.stop());
    wider.disconnect();
  };
}

/** Of a list at most so many, evenly spread, the first and the last among them. */
function spread(list, most) {
  if (list.length <= most) return [...list];
  return Array.from({ length: most }, (_, place) => list[Math.round((place * (list.length - 1)) / (most - 1))]);
}

function drawn(picture, epoch) {
  const image = element("img", []);
  const verdict = (right, what) => (right === null ? "" : `; ${what} ${right ? "right" : "wrong"}`);
  image.src = siteURL(picture.file);
  image.width = image.height = 96;
  image.loading = "lazy";
  image.alt = `“${picture.prompt}” as drawn at epoch ${epoch}${verdict(picture.shape, "shape")}${verdict(picture.colour, "colour")}`;
  const marks = [["shape", picture.shape], ["colour", picture.colour]].filter(([, right]) => right !== null);
  const note = element("span", [marks.map(([what, right]) => `${right ? "✓" : "✗"} ${what}`).join("  ")]);
  note.className = "verdict";
  note.ariaHidden = "true";
  return element("div", marks.length ? [image, note] : [image]);
}

function heading(text, scope) {
  const cell = element("th", [text]);
  cell.scope = scope;
  return cell;
}

function element(tag, children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}
