/**
 * Two distributions over the same bins, as bars side by side and as a table.
 * @module
 */

import { element, svg } from "../dom.js";
import { counted, number, signed } from "../format.js";
import { fold, smallTable } from "./page.js";

const HEIGHT = 100;

/**
 * @param {string} label what is distributed
 * @param {any} found edges, counts before and after, means and deviations
 */
export function distribution(label, found) {
  const highest = Math.max(1, ...found.before, ...found.after);
  const bars = found.before.flatMap((before, index) => {
    const after = found.after[index];
    const title = `${bin(found.edges, index)}: ${number(before)} before, ${number(after)} after`;
    return [bar(index + 0.06, before / highest, "before", title), bar(index + 0.5, after / highest, "after", title)];
  });
  const picture = svg(
    "svg.distribution",
    {
      viewBox: `0 0 ${found.before.length} ${HEIGHT}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": `${label} of ${counted(found.rollouts, "rollout")} before and after; the counts are in the table below`,
    },
    bars,
  );
  return element(
    "div.stack",
    {},
    element("div.bar", {}, key("before", "before"), key("after", "after")),
    picture,
    element(
      "div.ends.note",
      {},
      element("span", {}, number(found.edges[0])),
      element("span", {}, number(found.edges[found.edges.length - 1])),
    ),
    summary(label, found),
    fold("Counts", (body) => body.append(counts(label, found))),
  );
}

function summary(label, found) {
  const row = (name, before, after) => [name, number(before), number(after), signed(after - before)];
  return smallTable(`${label} before and after`, ["", ">Before", ">After", ">Change"], [
    row("Mean", found.mean_before, found.mean_after),
    row("Standard deviation", found.deviation_before, found.deviation_after),
  ]);
}

function counts(label, found) {
  const rows = found.before.map((before, index) => [
    bin(found.edges, index),
    number(before),
    number(found.after[index]),
    signed(found.after[index] - before),
  ]);
  return smallTable(`Counts: ${label}`, [label, ">Before", ">After", ">Change"], rows);
}

function bin(edges, index) {
  const [low, high] = [edges[index], edges[index + 1]];
  return low === high ? number(low) : `${number(low)} to ${number(high)}`;
}

function bar(x, share, name, title) {
  const height = share > 0 ? Math.max(1, share * HEIGHT) : 0;
  return svg(`rect.${name}`, { x, width: 0.42, y: HEIGHT - height, height }, svg("title", {}, title));
}

function key(name, text) {
  const swatch = svg(`svg.swatch.distribution-key`, { viewBox: "0 0 1 1", "aria-hidden": "true" });
  swatch.append(svg(`rect.${name}`, { width: 1, height: 1 }));
  return element("span.note.key", {}, swatch, text);
}
