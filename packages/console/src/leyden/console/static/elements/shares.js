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
  const sizes = parts.map((part) => part.seconds);
  return element("div.stack", {}, bar(sizes), smallTable(label, ["Part", ">Time", ">Share"], rows));
}

/**
 * Parts of which only the share is known.
 * @param {string} label
 * @param {string} title of the parts
 * @param {[string, number][]} parts name and share of each
 */
export function portions(label, title, parts) {
  const rows = parts.map(([name, share], index) => [
    element("span", {}, coloured(index), " ", visible(name)),
    percent(share),
  ]);
  const sizes = parts.map(([, share]) => share);
  return element("div.stack", {}, bar(sizes), smallTable(label, [title, ">Share"], rows));
}

function bar(sizes) {
  return element(
    "div.stacked",
    { "aria-hidden": "true" },
    sizes.map((size, index) => piece(index, size)),
  );
}

function piece(index, size) {
  const node = element("span");
  node.style.flexGrow = String(size);
  node.style.background = `var(--series-${index % 8})`;
  return node;
}

function coloured(index) {
  const node = element("span.swatch");
  node.style.display = "inline-block";
  node.style.background = `var(--series-${index % 8})`;
  return node;
}
