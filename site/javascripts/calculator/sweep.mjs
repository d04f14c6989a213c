// The memory over a range of one number, as a chart and as a table. Nothing is asked for until the reader opens it.

import { makeChart, makeTable } from "../charts.mjs";

const PARTS = ["weights", "gradients", "optimizer_state", "activations", "temporary"];
const GIB = 2 ** 30;

/**
 * @param {HTMLDetailsElement} details
 * @param {object} page ask(request) -> answer, request()
 */
export function makeSweep(details, page) {
  const along = details.querySelector("select");
  const note = details.querySelector("[data-slot=sweep-note]");
  const axes = { x: "", y: "GiB of GPU memory" };
  let answer = null;
  let chart = null;
  let asking = 0;
  const fillTable = makeTable(details, () => ({
    head: [answer?.title ?? "", "This setup", "Plain"],
    body: (answer?.points ?? []).map((point) => point.row),
  }));

  function lines() {
    if (!answer) return null;
    const x = answer.points.map((point) => point.value);
    let floor = x.map(() => 0);
    const parts = PARTS.map((part, index) => {
      const shown = answer.points.map((point) => point.parts[part] / GIB);
      const below = floor;
      floor = floor.map((value, place) => value + shown[place]);
      return { name: details.dataset[`name${index + 1}`], x, y: floor, floor: below, shown, colour: `series-${index + 1}` };
    });
    const plain = { name: "Plain", x, y: answer.points.map((point) => point.plain / GIB), colour: "ink", dashed: true };
    return [...parts, plain];
  }

  async function update() {
    if (!details.open) return;
    const mine = ++asking;
    const given = await page.ask({ ...page.request(), along: along.value }).catch((error) => ({ error: error.message }));
    if (mine !== asking) return;
    note.textContent = given.error ?? "";
    if (given.error) return;
    answer = given;
    axes.x = given.title;
    chart ??= makeChart(details.querySelector(".chart"), { axes, lines, from: 0, say: (size) => `${size.toFixed(2)} GiB` });
    chart.draw();
    fillTable();
  }

  details.addEventListener("toggle", update);
  along.addEventListener("change", update);
  return { update, stop: () => chart?.stop() };
}
