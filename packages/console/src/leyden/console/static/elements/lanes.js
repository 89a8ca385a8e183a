/**
 * Lanes over time: what ran when, and a line for the present moment of a replay.
 * @module
 */

import { element, svg } from "../dom.js";
import { counted } from "../format.js";

/**
 * @typedef {object} Bar
 * @property {number} start
 * @property {number} end
 * @property {string} title
 * @property {string} tone `model`, `tool`, `wait` or `error`
 * @property {string | null} id of the span
 *
 * @typedef {object} Lane
 * @property {string} name
 * @property {Bar[]} bars
 * @property {string} total
 */

export class Lanes {
  /**
   * @param {Lane[]} lanes
   * @param {number} from seconds at the left edge
   * @param {number} to seconds at the right edge
   * @param {(id: string) => void} onSelect
   */
  constructor(lanes, from, to, onSelect) {
    this.from = from;
    this.span = Math.max(to - from, 1e-6);
    this.heads = lanes.map(() => svg("line.playhead", { y1: "0", y2: "100%", x1: "0", x2: "0" }));
    this.node = element(
      "div.lanes",
      {},
      lanes
        .map((lane, index) => [
          element("span", {}, lane.name),
          svg(
            "svg",
            { role: "img", "aria-label": `${lane.name}: ${counted(lane.bars.length, "time")}, ${lane.total}` },
            lane.bars.map((bar) => this.#bar(bar, onSelect)),
            this.heads[index],
          ),
          element("span.lane-end", {}, lane.total),
        ])
        .flat(),
    );
  }

  /**
   * Moves the line.
   * @param {number} seconds
   */
  moveTo(seconds) {
    for (const head of this.heads) {
      head.setAttribute("x1", this.#place(seconds));
      head.setAttribute("x2", this.#place(seconds));
    }
  }

  #bar(bar, onSelect) {
    const width = `${Math.max(0.15, ((bar.end - bar.start) / this.span) * 100)}%`;
    const listen = bar.id === null ? {} : { onclick: () => onSelect(bar.id) };
    return svg(
      `rect.lane-bar.fill-${bar.tone}`,
      { x: this.#place(bar.start), width, y: "10%", height: "80%", ...listen },
      svg("title", {}, bar.title),
    );
  }

  #place(seconds) {
    return `${Math.max(0, Math.min(100, ((seconds - this.from) / this.span) * 100))}%`;
  }
}
