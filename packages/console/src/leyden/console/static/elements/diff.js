/**
 * Two texts, line by line: what stayed, what was removed, what was added.
 * @module
 */

import { element } from "../dom.js";
import { visible } from "../format.js";
import { longText } from "./page.js";

/** The largest table of the longest common subsequence; longer texts are shown as removed and added as a whole. */
const MOST_CELLS = 4_000_000;

/** @typedef {{kind: "same" | "added" | "removed", text: string}} Line */

/**
 * The lines of both texts in order, by their longest common subsequence.
 * @param {string} before
 * @param {string} after
 * @returns {Line[]}
 */
export function lineDiff(before, after) {
  const [old, next] = [before.split("\n"), after.split("\n")];
  let start = 0;
  while (start < old.length && start < next.length && old[start] === next[start]) start++;
  let end = 0;
  while (
    end < old.length - start &&
    end < next.length - start &&
    old[old.length - 1 - end] === next[next.length - 1 - end]
  )
    end++;
  const same = (lines) => lines.map((text) => ({ kind: "same", text }));
  const middle = changed(old.slice(start, old.length - end), next.slice(start, next.length - end));
  return [...same(old.slice(0, start)), ...middle, ...same(old.slice(old.length - end))];
}

/**
 * The difference as a picture of text. Signs, not only colours, tell added from removed.
 * @param {string} before
 * @param {string} after
 */
export function diff(before, after) {
  const signs = { same: "  ", added: "+ ", removed: "− " };
  const lines = lineDiff(before, after).map(({ kind, text }) =>
    element(`div.${kind}`, {}, signs[kind] + visible(text)),
  );
  return element("div.diff", { tabindex: "0", role: "group", "aria-label": "Difference" }, lines);
}

/**
 * Texts by name, each with its difference from the one of the same name in `before`; whole if there is none.
 * @param {Record<string, string> | null} before
 * @param {Record<string, string>} after
 * @returns {Node[]}
 */
export function differences(before, after) {
  const names = [...new Set([...Object.keys(before ?? {}), ...Object.keys(after)])];
  return names.flatMap((name) => {
    const [own, next] = [before?.[name], after[name] ?? ""];
    const title = element("h3", {}, visible(name));
    if (before === null) return [title, longText(next, { name })];
    if (own === next) return [title, element("p.note", {}, "unchanged")];
    return [title, diff(own ?? "", next)];
  });
}

function changed(old, next) {
  if (old.length * next.length > MOST_CELLS) return [...old.map(removed), ...next.map(added)];
  const width = next.length + 1;
  const lengths = new Uint32Array((old.length + 1) * width);
  for (let row = old.length - 1; row >= 0; row--) {
    for (let column = next.length - 1; column >= 0; column--) {
      const at = row * width + column;
      lengths[at] =
        old[row] === next[column] ? lengths[at + width + 1] + 1 : Math.max(lengths[at + width], lengths[at + 1]);
    }
  }
  return walk(old, next, lengths, width);
}

function walk(old, next, lengths, width) {
  const lines = [];
  let [row, column] = [0, 0];
  while (row < old.length && column < next.length) {
    const at = row * width + column;
    if (old[row] === next[column]) {
      lines.push({ kind: "same", text: old[row] });
      row++;
      column++;
    } else if (lengths[at + width] >= lengths[at + 1]) lines.push(removed(old[row++]));
    else lines.push(added(next[column++]));
  }
  return [...lines, ...old.slice(row).map(removed), ...next.slice(column).map(added)];
}

function removed(text) {
  return { kind: "removed", text };
}

function added(text) {
  return { kind: "added", text };
}
