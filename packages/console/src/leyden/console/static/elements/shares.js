/**
 * How a whole divides into parts: one bar, and the numbers as a table.
 * @module
 */

import { element } from "../dom.js";
import { duration, percent, visible } from "../format.js";
import { smallTable } from "./page.js";

/** Colours of parts by name, so that a part has the same colour on every page. */
const COLOURS = 8;
const OWN = {
  rollouts: 0,
  evaluate: 1,
  update: 2,
  checkpoint: 3,
  check: 4,
  load: 5,
  other: 6,
  publish: 7,
  "model calls": 0,
  tools: 4,
  "agent code": 3,
  "waiting in queue": 6,
};

/**
 * The number of each part's colour. Parts without a colour of their own get those that are left, in the order of their
 * names.
 * @param {string[]} names
 * @returns {number[]}
 */
export function coloursOf(names) {
  const taken = new Set(names.map((name) => OWN[name]));
  const left = Array.from({ length: COLOURS }, (_, colour) => colour).filter((colour) => !taken.has(colour));
  const others = names.filter((name) => !(name in OWN)).sort();
  return names.map((name) => OWN[name] ?? left[others.indexOf(name) % left.length] ?? others.indexOf(name) % COLOURS);
}

/**
 * @param {string} label
 * @param {{name: string, seconds: number, share: number}[]} parts
 */
export function shares(label, parts) {
  const colours = coloursOf(parts.map((part) => part.name));
  const rows = parts.map((part, index) => [
    element("span", {}, coloured(colours[index]), " ", visible(part.name)),
    duration(part.seconds),
    percent(part.share),
  ]);
  const sizes = parts.map((part) => part.seconds);
  return element("div.stack", {}, bar(sizes, colours), smallTable(label, ["Part", ">Time", ">Share"], rows));
}

/**
 * Parts of which only the share is known.
 * @param {string} label
 * @param {string} title of the parts
 * @param {[string, number][]} parts name and share of each
 */
export function portions(label, title, parts) {
  const rows = parts.map(([name, share], index) => [
    element("span", {}, coloured(index % COLOURS), " ", visible(name)),
    percent(share),
  ]);
  const sizes = parts.map(([, share]) => share);
  const colours = parts.map((_, index) => index % COLOURS);
  return element("div.stack", {}, bar(sizes, colours), smallTable(label, [title, ">Share"], rows));
}

function bar(sizes, colours) {
  return element(
    "div.stacked",
    { "aria-hidden": "true" },
    sizes.map((size, index) => piece(colours[index], size)),
  );
}

function piece(colour, size) {
  const node = element("span");
  node.style.flexGrow = String(size);
  node.style.background = `var(--series-${colour})`;
  return node;
}

function coloured(colour) {
  const node = element("span.swatch");
  node.style.display = "inline-block";
  node.style.background = `var(--series-${colour})`;
  return node;
}
