/**
 * A slice plot of a study: the score of each trial by its value of one searched key.
 * @module
 */

import { element, svg } from "../dom.js";
import { counted, number, visible } from "../format.js";

const WIDTH = 320;
const HEIGHT = 200;
const LEFT = 50;
const RIGHT = 12;
const TOP = 10;
const BOTTOM = 28;
/** Room for a mark above the highest score and below the lowest. */
const ROOM = 8;
/** Part of the room of a choice over which its points are spread, so that equal scores do not cover each other. */
const SPREAD = 0.4;
const GOLDEN = 0.618;

/**
 * @typedef {object} SliceKey
 * @property {string} key
 * @property {number | null} low
 * @property {number | null} high
 * @property {boolean} log
 * @property {string[]} choices empty for a range
 */

/**
 * @param {SliceKey} key
 * @param {any[]} trials with `number`, `values`, `score`, `state` and `default`
 * @param {{format: (value: number) => string, best: number | null, onPick: (number: number) => void}} options
 * @returns {HTMLElement}
 */
export function slice(key, trials, { format, best, onPick }) {
  const shown = trials.filter((trial) => trial.score !== null && key.key in trial.values);
  const [low, high] = scoreRange(shown);
  const y = (score) => TOP + ROOM + (1 - (score - low) / (high - low)) * (HEIGHT - TOP - BOTTOM - 2 * ROOM);
  const points = shown.map((trial) => point(trial, place(key, trial), y(trial.score), { key, format, best, onPick }));
  const name = visible(key.key);
  const label = `Scores by ${name}: ${counted(shown.length, "trial")}. The table of trials has the values.`;
  const picture = svg(
    "svg.slice",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
    [low, (low + high) / 2, high].flatMap((score) => scoreLine(y(score), format(score))),
    ticks(key).map(([x, text]) => tick(x, text)),
    points,
  );
  const figure = element("figure.chart", {}, element("h3", {}, name), picture);
  figure.style.margin = "0";
  return figure;
}

function point(trial, x, y, { key, format, best, onPick }) {
  const kind = trial.default ? "default" : trial.state === "finished" ? "finished" : "stopped";
  const isBest = trial.number === best;
  const words = [`Trial ${trial.number}`, trial.default && "the default", isBest && "the best", kind === "stopped" && trial.state];
  const text = `${words.filter(Boolean).join(", ")}: ${visible(trial.shown[key.key])}, ${format(trial.score)}`;
  const mark = trial.default
    ? svg("path", { d: `M${x} ${y - 7} L${x + 7} ${y} L${x} ${y + 7} L${x - 7} ${y} Z` })
    : svg("circle", { cx: x, cy: y, r: kind === "stopped" ? 3.5 : 4.5 });
  const ring = isBest && svg("circle.best", { cx: x, cy: y, r: 9 });
  return svg(`g.${kind}`, { onclick: () => onPick(trial.number) }, svg("title", {}, text), mark, ring);
}

function place(key, trial) {
  const value = trial.values[key.key];
  if (!key.choices.length) return within(key, value);
  const step = (WIDTH - LEFT - RIGHT) / key.choices.length;
  const aside = (((trial.number * GOLDEN) % 1) - 0.5) * SPREAD;
  return LEFT + (key.choices.indexOf(String(value)) + 0.5 + aside) * step;
}

function within({ low, high, log }, value) {
  const scale = log ? Math.log : (one) => one;
  return LEFT + 8 + ((scale(value) - scale(low)) / (scale(high) - scale(low))) * (WIDTH - LEFT - RIGHT - 16);
}

/** @returns {[number, string][]} */
function ticks(key) {
  if (key.choices.length) {
    const step = (WIDTH - LEFT - RIGHT) / key.choices.length;
    const most = Math.max(4, Math.floor(step / 6.5));
    return key.choices.map((choice, index) => [LEFT + (index + 0.5) * step, shortened(visible(choice), most)]);
  }
  const middle = key.log ? Math.sqrt(key.low * key.high) : (key.low + key.high) / 2;
  return [key.low, middle, key.high].map((value) => [within(key, value), number(Number(value.toPrecision(2)))]);
}

function shortened(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function tick(x, text) {
  const anchor = x < LEFT + 20 ? "start" : x > WIDTH - 30 ? "end" : "middle";
  return svg("text", { x, y: HEIGHT - 8, "text-anchor": anchor }, text);
}

function scoreLine(y, text) {
  return [
    svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y }),
    svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, text),
  ];
}

/** Lowest and highest score; two numbers that differ. */
function scoreRange(trials) {
  const scores = trials.map((trial) => trial.score);
  if (!scores.length) return [0, 1];
  const [low, high] = [Math.min(...scores), Math.max(...scores)];
  return low === high ? [low - (Math.abs(low) || 1) / 10, high] : [low, high];
}
