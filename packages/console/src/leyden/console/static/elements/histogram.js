/**
 * A histogram of rewards with which the reader chooses a range: drag over it, or type the range.
 * @module
 */

import { element, svg } from "../dom.js";
import { number } from "../format.js";

const BINS = 40;
const HEIGHT = 60;

export class Histogram {
  /**
   * @param {string} label
   * @param {[string, string]} range lowest and highest value as typed, "" if open
   * @param {(range: [string, string]) => void} onRange
   */
  constructor(label, range, onRange) {
    this.label = label;
    this.range = range;
    this.onRange = onRange;
    this.from = 0;
    this.to = 1;
    this.back = Array.from({ length: BINS }, (_, index) => bin(index, "all"));
    this.front = Array.from({ length: BINS }, (_, index) => bin(index, "kept"));
    this.shade = svg("rect.range", { y: 0, height: HEIGHT, width: 0 });
    this.picture = svg(
      "svg.histogram",
      { viewBox: `0 0 ${BINS} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
      this.back,
      this.front,
      this.shade,
    );
    this.low = this.#field(0);
    this.high = this.#field(1);
    const all = element("button.plain", { type: "button", onclick: () => this.#choose(["", ""]) }, "All");
    this.node = element(
      "div.stack",
      {},
      this.picture,
      element(
        "div.bar",
        {},
        labelled(`${label} from`, this.low),
        labelled("to", this.high),
        all,
        (this.text = element("p.note")),
      ),
    );
    this.node.style.gap = "0.4rem";
    this.#drag();
  }

  /**
   * @param {(number | null)[]} values of all rows
   * @param {ArrayLike<number>} rows those that pass the filter
   */
  setData(values, rows) {
    [this.from, this.to] = widened(bounds(values));
    const all = this.#count(values, null);
    const kept = this.#count(values, rows);
    const highest = Math.max(1, ...all);
    for (let index = 0; index < BINS; index++) {
      setHeight(this.back[index], all[index] / highest);
      setHeight(this.front[index], kept[index] / highest);
    }
    const sum = (counts) => counts.reduce((total, count) => total + count, 0);
    this.text.textContent = rangeText(bounds(values), this.label.toLowerCase(), sum(all), sum(kept), rows.length);
    this.picture.setAttribute("aria-label", `${this.label}: ${this.text.textContent}`);
    this.#drawRange();
  }

  #count(values, rows) {
    const counts = new Array(BINS).fill(0);
    const scale = BINS / (this.to - this.from);
    const add = (value) =>
      value !== null && value !== undefined && counts[Math.min(BINS - 1, Math.floor((value - this.from) * scale))]++;
    if (rows === null) values.forEach(add);
    else for (let index = 0; index < rows.length; index++) add(values[rows[index]]);
    return counts;
  }

  #field(position) {
    const field = element("input", { type: "number", step: "any", value: this.range[position] });
    field.addEventListener("change", () =>
      this.#choose(position === 0 ? [field.value, this.range[1]] : [this.range[0], field.value]),
    );
    return field;
  }

  #choose(range) {
    this.range = range;
    this.low.value = range[0];
    this.high.value = range[1];
    this.#drawRange();
    this.onRange(range);
  }

  #drawRange() {
    const open = this.range[0] === "" && this.range[1] === "";
    const place = (text, otherwise) =>
      text === "" ? otherwise : ((Number(text) - this.from) / (this.to - this.from)) * BINS;
    const left = Math.max(0, place(this.range[0], 0));
    this.shade.setAttribute("x", String(left));
    this.shade.setAttribute(
      "width",
      String(open ? 0 : Math.max(0.3, Math.min(BINS, place(this.range[1], BINS)) - left)),
    );
  }

  /** A drag chooses whole bins; a click chooses one. */
  #drag() {
    /** @type {number | null} */
    let begin = null;
    const at = (event) => {
      const { left, width } = this.picture.getBoundingClientRect();
      return Math.max(0, Math.min(BINS - 1, Math.floor(((event.clientX - left) / width) * BINS)));
    };
    const edge = (index) => String(Number((this.from + ((this.to - this.from) * index) / BINS).toPrecision(6)));
    /** @returns {[string, string]} */
    const chosen = (event) => [edge(Math.min(begin ?? 0, at(event))), edge(Math.max(begin ?? 0, at(event)) + 1)];
    this.picture.addEventListener("pointerdown", (event) => {
      begin = at(event);
      this.picture.setPointerCapture(event.pointerId);
    });
    this.picture.addEventListener("pointermove", (event) => {
      if (begin === null) return;
      this.range = chosen(event);
      this.#drawRange();
    });
    this.picture.addEventListener("pointerup", (event) => {
      if (begin !== null) this.#choose(chosen(event));
      begin = null;
    });
    this.picture.addEventListener("pointercancel", () => (begin = null));
  }
}

function bin(index, name) {
  return svg(`rect.${name}`, { x: index + 0.06, width: 0.88, y: HEIGHT, height: 0 });
}

function setHeight(rect, share) {
  const height = share > 0 ? Math.max(1, share * HEIGHT) : 0;
  rect.setAttribute("y", String(HEIGHT - height));
  rect.setAttribute("height", String(height));
}

/** @returns {[number, number]} */
function bounds(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null || value === undefined) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

/** A range that is not empty, for the axis. */
function widened([low, high]) {
  if (low > high) return [0, 1];
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

/**
 * What the histogram shows, in words.
 * @param {[number, number]} range lowest and highest value
 * @param {string} noun what the values are
 * @param {number} known number of rows that have a value
 * @param {number} kept those of them that pass the filter
 * @param {number} passed number of rows that pass the filter, with a value or without
 */
export function rangeText([low, high], noun, known, kept, passed) {
  if (!known) return `no rollout has a ${noun}`;
  const range = low === high ? `all ${number(low)}` : `${number(low)} to ${number(high)}`;
  const others = passed - kept;
  const without = others ? `; ${number(others)} without a ${noun}` : "";
  return `${range}; ${number(kept)} shown${without}`;
}

function labelled(label, field) {
  return element("label.field", {}, element("span", {}, label), field);
}
