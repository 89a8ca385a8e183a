/**
 * Whether a curve still rises, from its last third: a straight line by least squares, and how uncertain its slope is.
 * @module
 */

/** Fewer points than this say nothing. */
const LEAST = 8;
/** A curve is flat if its last third surely changes by less than this share of the whole curve's range. */
const SMALL = 0.1;

/**
 * @typedef {object} Trend
 * @property {"rising" | "falling" | "flat" | "unclear" | "unknown"} verdict rising or falling if the slope is two
 *     standard errors from zero; else flat if the noise leaves room for a small change only; unknown with too few points
 * @property {number} slope per step
 * @property {number} error standard error of the slope
 * @property {number} level the line's value at the last step
 * @property {number} steps the number of steps looked at
 */

/**
 * @param {number[]} steps
 * @param {(number | null)[]} values
 * @returns {Trend}
 */
export function trend(steps, values) {
  const known = steps
    .map((step, index) => [step, values[index]])
    .filter(([, value]) => value !== null && value !== undefined);
  const last = known.slice(-Math.max(LEAST, Math.ceil(known.length / 3)));
  if (last.length < LEAST) return { verdict: "unknown", slope: 0, error: 0, level: 0, steps: last.length };
  const mean = (column) => last.reduce((sum, point) => sum + point[column], 0) / last.length;
  const [x, y] = [mean(0), mean(1)];
  const spread = last.reduce((sum, point) => sum + (point[0] - x) ** 2, 0);
  const slope = last.reduce((sum, point) => sum + (point[0] - x) * (point[1] - y), 0) / spread;
  const rest = last.reduce((sum, point) => sum + (point[1] - y - slope * (point[0] - x)) ** 2, 0);
  const error = Math.sqrt(rest / (last.length - 2) / spread);
  const level = y + slope * (last[last.length - 1][0] - x);
  const range = Math.max(...known.map((point) => point[1])) - Math.min(...known.map((point) => point[1]));
  const length = last[last.length - 1][0] - last[0][0];
  return { verdict: verdictOf(slope, error, (SMALL * range) / length), slope, error, level, steps: last.length };
}

function verdictOf(slope, error, small) {
  if (Math.abs(slope) > 2 * error) return slope > 0 ? "rising" : "falling";
  return Math.abs(slope) + 2 * error <= small ? "flat" : "unclear";
}
