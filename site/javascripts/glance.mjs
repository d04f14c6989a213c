// The run at a glance, on the home page.

import { showCount, showNumber } from "./format.mjs";
import { describe, followRun, isOver, siteURL } from "./live.mjs";

export function start(root) {
  const slot = (name) => root.querySelector(`[data-slot="${name}"]`);

  function show(feed) {
    if (feed.phase === "loading" || (!feed.changed && !feed.lost)) return;
    const { kind, label, text } = describe(feed);
    slot("status").dataset.kind = kind;
    slot("status-label").textContent = label;
    slot("status-text").textContent = text;
    const known = feed.phase === "known";
    slot("numbers").classList.toggle("hidden", !known);
    slot("hint").classList.toggle("hidden", known);
    if (!known) return;
    slot("title").textContent = feed.run.title;
    slot("loss").textContent = showNumber(feed.state.loss);
    slot("active").textContent = showCount(isOver(feed) ? feed.volunteers.length : feed.state.active_peers);
    slot("samples").textContent = showCount(feed.state.total_samples);
    const points = feed.epochs.filter((row) => row.loss !== null).map((row) => [row.epoch, row.loss]);
    slot("curve").replaceChildren(...(points.length > 1 ? [curve(points)] : []));
    const latest = feed.snapshots.at(-1)?.pictures.slice(0, 4) ?? [];
    slot("pictures").replaceChildren(
      ...latest.map((picture) => {
        const image = document.createElement("img");
        image.src = siteURL(picture.file);
        image.alt = `Drawn by the model: “${picture.prompt}”`;
        image.title = picture.prompt;
        image.width = image.height = 72;
        return image;
      }),
    );
  }

  return followRun(show, { documents: ["leaderboard", "pictures"] });
}

/** The same picture as `spark_svg` of site/builder/plots.py. */
function curve(points) {
  const SVG = "http://www.w3.org/2000/svg";
  const [xs, ys] = [points.map((point) => point[0]), points.map((point) => point[1])];
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const at = ([x, y]) =>
    `${(4 + (292 * (x - left)) / (right - left || 1)).toFixed(1)},${(76 - (72 * (y - low)) / (high - low || 1)).toFixed(1)}`;
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 300 80");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `Loss from ${showNumber(ys[0])} at epoch ${left} to ${showNumber(ys.at(-1))} at epoch ${right}`);
  const path = document.createElementNS(SVG, "polyline");
  path.setAttribute("points", points.map(at).join(" "));
  svg.append(path);
  return svg;
}
