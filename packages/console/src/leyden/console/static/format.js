/**
 * Numbers, times and texts as the pages show them. An unknown value is "–".
 * @module
 */

export const UNKNOWN = "–";

/** Significant digits of a number, and the most that numbers get so that they differ. */
const DIGITS = 4;
const MOST_DIGITS = 15;
const WHOLE = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const MOMENT = new Intl.DateTimeFormat("en-GB", {
  day: "numeric",
  month: "short",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
});

/**
 * Four significant digits, or all digits of a whole number.
 * @param {number | null | undefined} value
 */
export function number(value) {
  return withDigits(value, DIGITS);
}

/**
 * Texts of numbers. Numbers that differ have different texts, with more digits than usual if that needs them.
 * @param {number[]} values
 * @returns {string[]}
 */
export function distinct(values) {
  const different = new Set(values).size;
  const texts = (digits) => values.map((value) => withDigits(value, digits));
  let digits = DIGITS;
  while (digits < MOST_DIGITS && new Set(texts(digits)).size < different) digits++;
  return texts(digits);
}

function withDigits(value, digits) {
  if (value === null || value === undefined || Number.isNaN(value)) return UNKNOWN;
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (Number.isInteger(value)) return WHOLE.format(value).replace("-", "−");
  const size = Math.abs(value);
  if (size < 1e-4 || size >= 1e9) return minus(value.toExponential(digits - 1));
  if (size >= 1000 && digits === DIGITS) return minus(WHOLE.format(value));
  return minus(String(Number(value.toPrecision(digits))));
}

/**
 * Seven significant digits, for numbers that the reader compares with each other.
 * @param {number | null | undefined} value
 */
export function exact(value) {
  if (value === null || value === undefined) return UNKNOWN;
  return minus(Math.abs(value) >= 1e-4 || value === 0 ? String(Number(value.toPrecision(7))) : value.toExponential(6));
}

/** @param {number | null | undefined} value with its sign, as a difference */
export function signed(value) {
  if (value === null || value === undefined) return UNKNOWN;
  return value > 0 ? `+${number(value)}` : number(value);
}

/** @param {number | null | undefined} share 0 to 1 */
export function percent(share) {
  return share === null || share === undefined ? UNKNOWN : minus(`${(share * 100).toFixed(1)} %`);
}

/** @param {number | null | undefined} share a difference of two shares, in percentage points */
export function points(share) {
  if (share === null || share === undefined) return UNKNOWN;
  return `${share > 0 ? "+" : ""}${minus((share * 100).toFixed(1))} pp`;
}

/** @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  if (seconds < 0.001) return seconds <= 0 ? "0 s" : "<1 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 100) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${whole % 60} s`;
  return `${WHOLE.format(Math.floor(minutes / 60))} h ${minutes % 60} min`;
}

/** @param {number | null | undefined} seconds since 1970 */
export function moment(seconds) {
  return seconds === null || seconds === undefined ? UNKNOWN : MOMENT.format(seconds * 1000);
}

/**
 * `1 rollout`, `2 rollouts`.
 * @param {number} count
 * @param {string} noun
 * @param {string} [plural]
 */
export function counted(count, noun, plural = `${noun}s`) {
  return `${number(count)} ${count === 1 ? noun : plural}`;
}

/**
 * A held-out result: a share in percent, anything else as a number.
 * @param {number | null | undefined} value
 * @param {boolean} isShare
 */
export function result(value, isShare) {
  return isShare ? percent(value) : number(value);
}

/** Any JSON value as text: a string as it is, the rest indented. */
export function plain(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

/** Any JSON value on one short line. */
export function brief(value, length = 120) {
  const text = (typeof value === "string" ? value : (JSON.stringify(value) ?? "")).slice(0, length * 4);
  const line = visible(oneLine(text));
  return line.length > length ? `${line.slice(0, length - 1)}…` : line;
}

/**
 * A text on one line. U+FEFF, which JavaScript counts as a space, stays, so that it can be shown.
 * @param {string} text
 */
export function oneLine(text) {
  return text.replace(/[^\S\ufeff]+/g, " ").replace(/^ | $/g, "");
}

/**
 * The beginning and the end of a text that is too long.
 * @param {string} text
 * @param {number} most characters
 */
export function shortened(text, most) {
  const characters = [...text];
  if (characters.length <= most) return text;
  const end = Math.ceil((most - 1) * 0.6);
  return `${characters.slice(0, most - 1 - end).join("")}…${characters.slice(-end).join("")}`;
}

/**
 * Text in which control characters, and characters that reorder or hide others, can be seen.
 * @param {string} text
 */
export function visible(text) {
  return text
    .replace(/[\u0000-\u0008\u000b-\u001f]/g, (one) => String.fromCharCode(0x2400 + one.charCodeAt(0)))
    .replace(/\u007f/g, "\u2421")
    .replace(/[\u0080-\u009f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]/g, codePoint);
}

/**
 * A token as the strip shows it: spaces and line breaks can be seen, too.
 * @param {string} text
 */
export function tokenText(text) {
  return text === "" ? "∅" : visible(text).replace(/ /g, "·").replace(/\n/g, "⏎").replace(/\t/g, "⇥");
}

/**
 * A text as one word of a shell command, so that a run's name cannot become a command of its own.
 * @param {string} text
 */
export function shellWord(text) {
  return /^[\w.:/@%+=,-]+$/.test(text) && !text.startsWith("-") ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function codePoint(one) {
  return `⟨U+${one.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

function minus(text) {
  return text.replaceAll("-", "−");
}
