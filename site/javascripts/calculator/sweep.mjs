// The memory over a range of one number, as a chart and as a table. Nothing is fetched until the reader opens it.

import { colour, makeChart, makeTable } from "../charts.mjs";

const PARTS = ["weights", "gradients", "optimizer_state", "activations", "temporary"];
const GIB = 2 ** 30;

/**
 * @param {HTMLDetailsElement} details
 * @param {object} page ask(request) -> answer, request(), plotly: the library's address
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

  function traces() {
    if (!answer) return [];
    const x = answer.points.map((point) => point.value);
    const parts = PARTS.map((part, index) => ({
      name: details.dataset[`name${index + 1}`],
      x,
      y: answer.points.map((point) => point.parts[part] / GIB),
      stackgroup: "parts",
      mode: "lines",
      line: { width: 1, color: colour(`series-${index + 1}`) },
      hovertemplate: "%{y:.2f} GiB",
    }));
    const plain = {
      name: "Plain",
      x,
      y: answer.points.map((point) => point.plain / GIB),
      mode: "lines",
      line: { width: 2, dash: "dot", color: colour("ink") },
      hovertemplate: "%{y:.2f} GiB",
    };
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
    chart ??= makeChart(details.querySelector(".chart"), { plotly: page.plotly, axes, traces, from: 0 });
    chart.draw();
    fillTable();
  }

  details.addEventListener("toggle", update);
  along.addEventListener("change", update);
  return { update, stop: () => chart?.stop() };
}
