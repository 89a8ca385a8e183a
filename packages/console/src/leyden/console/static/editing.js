/**
 * Changes of a program's text that an editor's keys make: indentation of lines. Pure functions.
 * @module
 */

export const INDENT = "    ";

/**
 * A part of a text that is replaced, and what is selected afterwards.
 * @typedef {{from: number, to: number, text: string, start: number, end: number}} Change
 */

/**
 * Indents: at the cursor to the next stop, or all selected lines by one.
 * @param {string} text
 * @param {number} start of the selection
 * @param {number} end
 * @returns {Change}
 */
export function indent(text, start, end) {
  if (!text.slice(start, end).includes("\n")) {
    const column = start - lineStart(text, start);
    const spaces = " ".repeat(INDENT.length - (column % INDENT.length));
    return { from: start, to: end, text: spaces, start: start + spaces.length, end: start + spaces.length };
  }
  return changed(text, start, end, (line) => (line.trim() === "" ? line : INDENT + line));
}

/**
 * Takes one indentation from the lines of the selection.
 * @param {string} text
 * @param {number} start
 * @param {number} end
 * @returns {Change}
 */
export function outdent(text, start, end) {
  return changed(text, start, end, (line) => line.replace(/^(\t| {1,4})/, ""));
}

/**
 * A new line as far in as the present one; further, after a colon.
 * @param {string} text
 * @param {number} start
 * @param {number} end
 * @returns {Change}
 */
export function newLine(text, start, end) {
  const line = text.slice(lineStart(text, start), start);
  const spaces = /^[ \t]*/.exec(line)?.[0] ?? "";
  const inserted = `\n${spaces}${line.trimEnd().endsWith(":") ? INDENT : ""}`;
  return { from: start, to: end, text: inserted, start: start + inserted.length, end: start + inserted.length };
}

/**
 * Where a line begins and ends.
 * @param {string} text
 * @param {number} line counted from 1
 * @returns {[number, number]}
 */
export function lineRange(text, line) {
  let start = 0;
  for (let number = 1; number < line && text.includes("\n", start); number++) start = text.indexOf("\n", start) + 1;
  const end = text.indexOf("\n", start);
  return [start, end < 0 ? text.length : end];
}

/** @param {string} text */
export function lineCount(text) {
  return text.split("\n").length;
}

function lineStart(text, at) {
  return text.lastIndexOf("\n", at - 1) + 1;
}

function changed(text, start, end, change) {
  const from = lineStart(text, start);
  const last = end > start && text[end - 1] === "\n" ? end - 1 : end;
  const next = text.indexOf("\n", last);
  const to = next < 0 ? text.length : next;
  const lines = text.slice(from, to).split("\n");
  const made = lines.map(change);
  const first = made[0].length - lines[0].length;
  const all = made.reduce((sum, line, index) => sum + line.length - lines[index].length, 0);
  return { from, to, text: made.join("\n"), start: Math.max(from, start + first), end: Math.max(from, end + all) };
}
