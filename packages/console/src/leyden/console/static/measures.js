/**
 * What is known of each token of a response, as columns that can be shown and coloured.
 * @module
 */

import { distinct, number } from "./format.js";
import { aroundZero, lowToHigh } from "./quantiles.js";

/** Measures of an update that colour tokens at first; they are in this order in the list. */
const USUAL = ["ratios", "advantages"];

/**
 * @typedef {object} Measure
 * @property {string} key
 * @property {string} title
 * @property {(number | null)[]} values null: the token has none
 * @property {number | null} zero the value from which a token is coloured in two directions; null: from low to high
 * @property {(value: number | null) => string} text
 */

/**
 * @param {any} response of a call
 * @param {any | null} trained one update that learned from it
 * @returns {Measure[]} only those of which some token has a value
 */
export function measures(response, trained) {
  const of = trained ?? {};
  const clipped = (value) => (value === null ? "–" : value ? "yes" : "no");
  return [
    measure("logprobs", "Log-probability when sampled", response.logprobs),
    measure("sampled_logprobs", "… as sampled (temperature, top-p, grammar)", response.sampled_logprobs),
    measure("trained_logprobs", "Log-probability when trained", of.logprobs),
    measure("ratios", "Ratio", of.ratios, 1),
    measure("advantages", "Advantage", of.advantages, 0),
    measure("losses", "Loss", of.losses, 0),
    measure("weights", "Weight", of.weights),
    measure("clipped", "Clipped", of.clipped, null, clipped),
    measure("entropy", "Entropy", of.entropy),
    measure("allowed", "Tokens that grammar and top-p allowed", response.allowed),
    measure("versions", "Version of the policy", response.versions),
  ].filter((one) => one.values.some((value) => value !== null));
}

/**
 * The colour scale of a measure.
 * @param {Measure} one
 */
export function scaleOf(one) {
  return one.zero === null ? lowToHigh(one.values) : aroundZero(one.values, one.zero);
}

/**
 * Key of the measure by which tokens are coloured if the reader has chosen none: that of an update if it tells tokens
 * apart, and otherwise the log-probability.
 * @param {Measure[]} all
 */
export function usualMeasure(all) {
  const tells = all.find((one) => USUAL.includes(one.key) && scaleOf(one).legend.length > 1);
  return tells?.key ?? "logprobs";
}

/**
 * What the legend of a scale says of each class.
 * @param {Measure} one
 * @param {import("./quantiles.js").Scale} scale
 * @returns {string[]}
 */
export function legendTexts(one, { legend }) {
  const limits = legend.flatMap(({ from, to }) => [from, to]);
  const texts = one.text === number ? distinct(limits) : limits.map(one.text);
  const found = legend.map((_, index) => texts.slice(2 * index, 2 * index + 2));
  return found.map(([from, to]) => (from !== to ? `${from} … ${to}` : found.length === 1 ? `all ${from}` : from));
}

/**
 * Whether an update left a token out: it has no loss, or weight 0.
 * @param {any} trained
 * @param {number} index
 */
export function isMasked(trained, index) {
  return (
    Boolean(trained.masked?.[index]) || (trained.losses?.[index] ?? null) === null || trained.weights?.[index] === 0
  );
}

/**
 * The sum of the values that are there.
 * @param {(number | null)[]} values
 */
export function sum(values) {
  return (values ?? []).reduce((total, value) => total + (value ?? 0), 0);
}

function measure(key, title, values, zero = null, text = number) {
  return { key, title, values: (values ?? []).map((value) => (value === null ? null : Number(value))), zero, text };
}
