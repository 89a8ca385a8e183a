/**
 * Scales that colour values by their quantile, so that one extreme value does not make all others look the same.
 * @module
 */

const CLASSES = 7;
/** The class of zero in a scale with two directions. */
const MIDDLE = 3;
/** Significant digits in which values must differ: what is behind them is rounding. */
const DIGITS = 6;
/** Part of `zero` that a value must differ from it. */
const LEAST = 1e-5;

/**
 * @typedef {object} Scale
 * @property {(value: number | null | undefined) => string | null} classOf the CSS class of a value; none for a value
 *     that is missing
 * @property {{name: string, from: number, to: number}[]} legend the classes that occur, with their lowest and highest
 *     value
 */

/**
 * Seven classes of as equal size as the values allow. Values that differ only by rounding are in one class.
 * @param {(number | null | undefined)[]} values
 * @returns {Scale}
 */
export function lowToHigh(values) {
  const edges = quantiles(known(values).map(rounded), CLASSES);
  return scale(values, rounded, (value) => `low-${edges.filter((edge) => edge < value).length}`);
}

/**
 * Three classes of as equal size as possible on either side of `zero`, and one for `zero` itself. Values that differ
 * only by rounding, from each other or from `zero`, are in one class.
 * @param {(number | null | undefined)[]} values
 * @param {number} zero
 * @returns {Scale}
 */
export function aroundZero(values, zero) {
  const plain = (value) => (Math.abs(value - zero) <= LEAST * Math.abs(zero) ? zero : rounded(value));
  const edges = quantiles(
    known(values)
      .map((value) => Math.abs(plain(value) - zero))
      .filter((size) => size > 0),
    MIDDLE,
  );
  return scale(values, plain, (value) => {
    if (value === zero) return `signed-${MIDDLE}`;
    const size = 1 + edges.filter((edge) => edge < Math.abs(value - zero)).length;
    return `signed-${value < zero ? MIDDLE - size : MIDDLE + size}`;
  });
}

/** The scale with the class `name` of each value, which is first made `plain`. */
function scale(values, plain, name) {
  /** @type {Map<string, {name: string, from: number, to: number}>} */
  const legend = new Map();
  for (const value of known(values).map(plain)) {
    const one = legend.get(name(value)) ?? { name: name(value), from: value, to: value };
    legend.set(one.name, { name: one.name, from: Math.min(one.from, value), to: Math.max(one.to, value) });
  }
  const classOf = (value) => (value === null || value === undefined ? null : name(plain(value)));
  return { classOf, legend: [...legend.values()].sort((a, b) => a.from - b.from) };
}

/** The `parts - 1` values that divide the sorted values into equal parts. */
function quantiles(values, parts) {
  const sorted = [...values].sort((a, b) => a - b);
  if (!sorted.length) return [];
  return Array.from({ length: parts - 1 }, (_, index) => sorted[Math.ceil(((index + 1) / parts) * sorted.length) - 1]);
}

function rounded(value) {
  return Number(value.toPrecision(DIGITS));
}

function known(values) {
  return values.filter((value) => value !== null && value !== undefined);
}
