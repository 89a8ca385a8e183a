/**
 * The numbers of a run's steps, and how later answers of the API are added to them.
 * @module
 */

/** Weight of the past in a smoothed curve, for each position of the slider. */
export const SMOOTHING = [0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98];

/** Columns of numbers: `steps`, and for each name one value or null a step. */
export class StepSeries {
  constructor() {
    /** @type {string} */
    this.generation = "";
    /** Lines of the run's record that were read. */
    this.lines = 0;
    /** @type {number[]} ascending */
    this.steps = [];
    /** @type {Record<string, (number | null)[]>} */
    this.series = {};
    /** @type {{step: number, set: string, kind: "own" | "sampled", success: number, side: string | null}[]} */
    this.held_out = [];
    /** @type {{step: number, name: string, message: string}[]} */
    this.alerts = [];
    /** @type {{title: string, series: string[], folded: boolean}[]} */
    this.groups = [];
  }

  /**
   * Adds an answer of `/steps`. An answer of another generation replaces everything.
   * @param {any} answer
   * @returns {boolean} whether series or groups appeared that were not there before
   */
  add(answer) {
    if (answer.generation !== this.generation) Object.assign(this, new StepSeries(), { generation: answer.generation });
    const known = this.shape();
    for (const [index, step] of answer.steps.entries()) this.#put(this.#row(step), answer.series, index);
    for (const [name, column] of Object.entries(this.series))
      while (column.length < this.steps.length) column.push(without(name));
    this.lines = answer.lines;
    this.held_out = this.held_out.concat(answer.held_out);
    this.alerts = this.alerts.concat(answer.alerts);
    this.groups = answer.groups;
    return this.shape() !== known;
  }

  /** A text that changes when charts must be made anew. */
  shape() {
    return JSON.stringify([this.generation, this.groups, this.heldOutNames()]);
  }

  /**
   * Which series are drawn in one chart, and which of the charts are folded at first: those of single series, and of
   * groups that are seldom needed.
   */
  charts() {
    const isKnown = (name) => name in this.series;
    const grouped = new Set(this.groups.flatMap((group) => group.series));
    const others = Object.keys(this.series).filter((name) => !grouped.has(name));
    return [
      ...this.groups.map((group) => ({ ...group, series: group.series.filter(isKnown) })),
      ...others.map((name) => ({ title: name, series: [name], folded: true })),
    ].filter(({ series }) => series.length);
  }

  /** `val`, `val (sampled)`: the held-out results that there are. */
  heldOutNames() {
    return [...new Set(this.held_out.map(heldOutName))];
  }

  /** Held-out results as columns of the same steps; step 0, before training, comes first. */
  heldOut() {
    const steps = [...new Set(this.held_out.map((one) => one.step))].sort((a, b) => a - b);
    const place = new Map(steps.map((step, index) => [step, index]));
    /** @type {Record<string, (number | null)[]>} */
    const series = {};
    for (const name of this.heldOutNames()) series[name] = steps.map(() => null);
    for (const one of this.held_out) series[heldOutName(one)][place.get(one.step)] = one.success;
    return { steps, series };
  }

  #row(step) {
    const last = this.steps.length - 1;
    if (last < 0 || step > this.steps[last]) return this.steps.push(step) - 1;
    const found = this.steps.indexOf(step);
    if (found >= 0) return found;
    const place = this.steps.findIndex((one) => one > step);
    this.steps.splice(place, 0, step);
    for (const [name, column] of Object.entries(this.series)) column.splice(place, 0, without(name));
    return place;
  }

  #put(row, series, index) {
    for (const [name, values] of Object.entries(series)) {
      const column = (this.series[name] ??= []);
      while (column.length < this.steps.length) column.push(without(name));
      if (values[index] !== null) column[row] = values[index];
    }
  }
}

/**
 * Exponential moving average, corrected for its beginning. Nulls stay null and count nothing.
 * @param {(number | null)[]} values
 * @param {number} weight of the past, 0 to 1
 */
export function smooth(values, weight) {
  let sum = 0;
  let mass = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return sum / mass;
  });
}

/**
 * The steps from the first to the last as a range, which is never empty.
 * @param {number[]} steps ascending
 * @returns {[number, number]}
 */
export function extent(steps) {
  if (steps.length === 0) return [0, 1];
  const [first, last] = [steps[0], steps[steps.length - 1]];
  return first === last ? [first - 0.5, last + 0.5] : [first, last];
}

/**
 * The last value that is known; null without any.
 * @param {(number | null)[]} values
 */
export function lastOf(values) {
  return values.findLast((value) => value !== null && value !== undefined) ?? null;
}

/** The value of a series in a step without it: a step names only the reasons for which it has left something out. */
function without(name) {
  return /^(rollouts|calls)_left_out\//.test(name) ? 0 : null;
}

function heldOutName(one) {
  return [one.side, one.set].filter(Boolean).join("/") + (one.kind === "sampled" ? " (sampled)" : "");
}
