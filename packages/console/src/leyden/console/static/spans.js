/**
 * The spans of an attempt: as a tree, as lanes over time, and compared with those of another attempt.
 * @module
 */

import { duration, number, oneLine, visible } from "./format.js";
import { element } from "./dom.js";

/** Kinds in which an agent's time is counted; the rest of it is spent in the agent's own code, or waiting. */
const LANES = { model: "model calls", tool: "tools", wait: "agent, waiting" };

/**
 * When a span happened, for the order of steps. A result and a reward are spans of the whole attempt, and count where
 * they end.
 * @param {any} span
 * @returns {number} seconds
 */
export function momentOf(span) {
  return span.kind === "result" || span.kind === "reward" ? (span.end ?? span.start) : span.start;
}

/**
 * Spans in the order in which they happened; those of the same moment in the given order.
 * @param {any[]} spans
 * @returns {any[]}
 */
export function inOrder(spans) {
  return [...spans].sort((a, b) => momentOf(a) - momentOf(b));
}

/**
 * Branches for a Tree. A span whose parent is unknown is a root.
 * @param {any[]} spans
 * @param {string | null} [different] id of a span that is marked
 * @returns {import("./elements/tree.js").Branch[]}
 */
export function branches(spans, different = null) {
  const known = new Map(
    inOrder(spans).map((span) => [
      span.id,
      { id: span.id, label: label(span), tone: tone(span, different), children: [] },
    ]),
  );
  const roots = [];
  for (const span of inOrder(spans)) {
    const branch = known.get(span.id);
    const parent = span.parent === span.id ? undefined : known.get(span.parent);
    (parent && !isBelow(parent, branch) ? parent.children : roots).push(branch);
  }
  return roots;
}

/**
 * The lanes of an attempt: model calls, tools, and the time that neither takes.
 * @param {any[]} spans
 * @param {number} from
 * @param {number} to
 * @returns {import("./elements/lanes.js").Lane[]}
 */
export function lanes(spans, from, to) {
  const bars = (kind) =>
    inOrder(spans)
      .filter((span) => span.kind === kind)
      .map(bar);
  const model = bars("model");
  const tool = bars("tool");
  const wait = gaps([...model, ...tool], from, to).map(([start, end]) => ({
    start,
    end,
    title: `agent's own code, or waiting: ${duration(end - start)}`,
    tone: "wait",
    id: null,
  }));
  return Object.entries({ model, tool, wait }).map(([kind, own]) => ({
    name: LANES[kind],
    bars: own,
    total: duration(covered(own)),
  }));
}

/**
 * Index of the first step in which two attempts differ, or null. Steps are spans in order; times and ids do not count.
 * @param {any[]} left in order
 * @param {any[]} right in order
 */
export function firstDifference(left, right) {
  for (let index = 0; index < Math.max(left.length, right.length); index++) {
    if (!left[index] || !right[index] || said(left[index]) !== said(right[index])) return index;
  }
  return null;
}

/**
 * What a span said, as text.
 * @param {any} span
 */
export function said(span) {
  const { model, tool, reward } = span;
  const calls = (model?.tool_calls ?? []).map((call) => `${call.name}(${call.arguments})`);
  const parts = [
    span.kind,
    span.title,
    model?.answer,
    ...calls,
    tool?.arguments,
    tool?.result,
    reward?.value,
    span.text,
    span.error,
  ];
  return parts.filter((part) => part !== null && part !== undefined && part !== "").join("\n");
}

/**
 * Index of the first character in which two texts differ, or null.
 * @param {string} left
 * @param {string} right
 */
export function firstCharacter(left, right) {
  if (left === right) return null;
  let index = 0;
  while (index < left.length && left[index] === right[index]) index++;
  return index;
}

function label(span) {
  const seconds = span.end === null || span.end === span.start ? "" : duration(span.end - span.start);
  return [
    element("span.tree-kind", {}, span.kind),
    element("span.tree-title", { dir: "auto" }, visible(summary(span))),
    element("span.tree-end", {}, span.error ? "error " : "", seconds),
  ];
}

/**
 * A span on one line, as the tree shows it.
 * @param {any} span
 */
export function summary(span) {
  const called = (span.model?.tool_calls ?? []).map((call) => `→ ${call.name}(${call.arguments})`).join(" ");
  const text = span.model?.answer || called || span.text || (span.reward && number(span.reward.value)) || "";
  return `${span.title}${text && text !== span.title ? ` · ${oneLine(text.slice(0, 160))}` : ""}`;
}

function tone(span, different) {
  if (span.id === different) return "different";
  return span.error || span.kind === "exception" ? "bad" : "";
}

/** Whether `parent` is below `branch` already: recorded parents may form a circle. */
function isBelow(parent, branch) {
  return branch === parent || branch.children.some((child) => isBelow(parent, child));
}

function bar(span) {
  const end = span.end ?? span.start;
  return {
    start: span.start,
    end,
    title: `${span.title}: ${duration(end - span.start)}`,
    tone: span.error ? "error" : span.kind,
    id: span.id,
  };
}

function gaps(bars, from, to) {
  const found = [];
  let reached = from;
  for (const { start, end } of bars.sort((a, b) => a.start - b.start)) {
    if (start > reached) found.push([reached, start]);
    reached = Math.max(reached, end);
  }
  if (to > reached) found.push([reached, to]);
  return found;
}

/** Seconds that at least one bar covers. */
function covered(bars) {
  let [sum, reached] = [0, -Infinity];
  for (const { start, end } of [...bars].sort((a, b) => a.start - b.start)) {
    sum += Math.max(0, end - Math.max(start, reached));
    reached = Math.max(reached, end);
  }
  return sum;
}
