/**
 * How a whole divides into parts: one bar, and the numbers as a table.
 * @module
 */

import { element } from "../dom.js";
import { duration, percent, visible } from "../format.js";
import { smallTable } from "./page.js";

/**
 * @param {string} label
 * @param {{name: string, seconds: number, share: number | null}[]} parts
 */
export function shares(label, parts) {
  const total = parts.reduce((sum, part) => sum + part.seconds, 0);
  const rows = parts.map((part, index) => [
    element("span", {}, coloured(index), " ", visible(part.name)),
    duration(part.seconds),
    percent(part.share ?? (total ? part.seconds / total : null)),
  ]);
  const bar = element(
    "div.stacked",
    { "aria-hidden": "true" },
    parts.map((part, index) => piece(index, part.seconds)),
  );
  return element("div.stack", {}, bar, smallTable(label, ["Part", ">Time", ">Share"], rows));
}

function piece(index, seconds) {
  const node = element("span");
  node.style.flexGrow = String(seconds);
  node.style.background = `var(--series-${index % 8})`;
  return node;
}

function coloured(index) {
  const node = element("span.swatch");
  node.style.display = "inline-block";
  node.style.background = `var(--series-${index % 8})`;
  return node;
}
