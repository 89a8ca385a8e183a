/**
 * All rollouts of a run as columns, filtered and sorted in the browser. A rollout is its row: an index into the
 * columns.
 * @module
 */

import { get } from "./api.js";

/** The most rollouts that the server gives; of more, the newest. */
const MOST = 100_000;
/** Milliseconds between two looks while the server still reads. */
const PAUSE = 500;
/** Looks until a store without rollouts counts as empty: the server begins to read when it is first asked. */
const FIRST_LOOKS = 4;

/** Filters of a list of rollouts, as the address names them. */
const TEXTS = ["text", "mode", "status", "set", "reason", "agents", "group", "trained"];
const NUMBERS = ["step", "version", "task", "low", "high"];

/** Filters that compare a column with one text. */
const EXACT = ["mode", "status", "set", "reason", "agents", "group"];

/**
 * What the reader wants to see; an absent or empty field does not filter.
 * @typedef {object} Filter
 * @property {string} [text] words that id, error, agents and reason contain
 * @property {string} [mode]
 * @property {string} [status]
 * @property {string} [set] a held-out set
 * @property {string} [reason] why it was not trained
 * @property {string} [agents]
 * @property {string} [group]
 * @property {string} [trained] "yes" or "no"
 * @property {string} [step]
 * @property {string} [version]
 * @property {string} [task]
 * @property {string} [low] lowest reward
 * @property {string} [high] highest reward
 */

/**
 * The filter that an address names. A value that no field can show is left out.
 * @param {URLSearchParams} query
 * @returns {Filter}
 */
export function filterOf(query) {
  const value = (name) => {
    const text = query.get(name) ?? "";
    if (name === "trained") return ["yes", "no"].includes(text) ? text : "";
    return NUMBERS.includes(name) && !Number.isFinite(Number(text)) ? "" : text;
  };
  return Object.fromEntries([...TEXTS, ...NUMBERS].map((name) => [name, value(name)]));
}

export class RolloutColumns {
  constructor() {
    this.generation = "";
    this.next = 0;
    this.total = 0;
    this.indexed = 0;
    /** @type {string | null} why the server cannot read the store now */
    this.problem = null;
    this.length = 0;
    /** @type {Record<string, any[]>} */
    this.columns = {};
    /** @type {Map<string, number>} */
    this.rows = new Map();
    /** @type {string[]} texts that a search looks at, in lower case; made when first needed */
    this.haystack = [];
  }

  /**
   * Adds an answer of `/rollouts`: rows that are new, and rows that have changed, which replace those of the same id.
   * A cursor that
   * went back, or another generation, means that the store is another one; the answer then replaces everything.
   * @param {any} answer
   * @returns {boolean} whether a row was added or changed
   */
  add(answer) {
    const generation = answer.generation ?? "";
    if (generation !== this.generation || answer.next < this.next)
      Object.assign(this, new RolloutColumns(), { generation });
    this.#put(answer.updates);
    this.#put(answer.columns);
    const { next, total, indexed, problem = null } = answer;
    Object.assign(this, { next, total, indexed, problem });
    return answer.count > 0 || (answer.updates?.id?.length ?? 0) > 0;
  }

  /**
   * Rows that pass, newest first.
   * @param {Filter} filter
   * @returns {number[]}
   */
  filter(filter) {
    const tests = this.#tests(filter);
    const found = [];
    for (let row = this.length - 1; row >= 0; row--) {
      if (tests.every((test) => test(row))) found.push(row);
    }
    return found;
  }

  /**
   * The values of a column and how many rows have each, most frequent first.
   * @param {string} name
   * @returns {[string, number][]}
   */
  counts(name) {
    const counts = new Map();
    for (const value of this.columns[name] ?? [])
      if (value !== null && value !== "") counts.set(value, (counts.get(value) ?? 0) + 1);
    return [...counts].sort((a, b) => b[1] - a[1]);
  }

  /**
   * Groups of the given rows, in the order of their first row.
   * @param {ArrayLike<number>} rows
   * @returns {Group[]}
   */
  groups(rows) {
    /** @type {Map<string, number[]>} */
    const members = new Map();
    for (const row of Array.from(rows)) {
      const id = this.columns.group[row];
      if (id === "") continue;
      if (members.has(id)) members.get(id)?.push(row);
      else members.set(id, [row]);
    }
    return [...members].map(([id, own]) => this.#group(id, own));
  }

  /**
   * How many updates behind the policy was that made the rollout, when it was learned from; null if unknown.
   * @param {number} row
   */
  staleness(row) {
    const [step, version] = [this.columns.step[row], this.columns.version[row]];
    return step === null || version === null || this.columns.mode[row] !== "train"
      ? null
      : Math.max(0, step - 1 - version);
  }

  #group(id, rows) {
    const rewards = rows.map((row) => this.columns.reward[row]).filter((reward) => reward !== null);
    const mean = rewards.length ? rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length : null;
    const spread =
      mean === null ? null : Math.sqrt(rewards.reduce((sum, reward) => sum + (reward - mean) ** 2, 0) / rewards.length);
    const reasons = [...new Set(rows.map((row) => this.columns.reason[row]).filter(Boolean))];
    const stale = rows.map((row) => this.staleness(row)).filter((value) => value !== null);
    return {
      id,
      rows,
      rewards,
      mean,
      spread,
      step: this.columns.step[rows[0]],
      task: this.columns.task[rows[0]],
      versions: [...new Set(rows.map((row) => this.columns.version[row]).filter((version) => version !== null))].sort(
        (a, b) => a - b,
      ),
      staleness: stale.length ? Math.max(...stale) : null,
      trained: rows.filter((row) => this.columns.trained[row]).length,
      reasons,
    };
  }

  #tests(filter) {
    const { columns } = this;
    const tests = EXACT.filter((name) => filter[name]).map((name) => equals(columns[name], filter[name]));
    for (const name of ["step", "version", "task"])
      if (filter[name]) tests.push(equals(columns[name], Number(filter[name])));
    if (filter.trained)
      tests.push(
        (row) => columns.trained[row] !== null && Boolean(columns.trained[row]) === (filter.trained === "yes"),
      );
    if (filter.low) tests.push((row) => columns.reward[row] !== null && columns.reward[row] >= Number(filter.low));
    if (filter.high) tests.push((row) => columns.reward[row] !== null && columns.reward[row] <= Number(filter.high));
    for (const word of (filter.text ?? "").toLowerCase().split(/\s+/).filter(Boolean)) tests.push(this.#contains(word));
    return tests;
  }

  #contains(word) {
    const { columns, haystack } = this;
    for (let row = haystack.length; row < this.length; row++) haystack.push(this.#searched(row));
    return (row) => {
      haystack[row] ??= this.#searched(row);
      return haystack[row].includes(word) || columns.id[row] === word;
    };
  }

  #searched(row) {
    const { id, error, agents, reason } = this.columns;
    return `${id[row]}\n${error[row]}\n${agents[row]}\n${reason[row]}`.toLowerCase();
  }

  #put(columns) {
    const names = Object.keys(columns ?? {});
    for (let index = 0; index < (columns?.id?.length ?? 0); index++) {
      const row = this.rows.get(columns.id[index]) ?? this.length++;
      this.rows.set(columns.id[index], row);
      for (const name of names) (this.columns[name] ??= [])[row] = columns[name][index];
      if (row < this.haystack.length) this.haystack[row] = this.#searched(row);
    }
    for (const name of names) this.columns[name] ??= [];
  }
}

/**
 * Rollouts of one task that are compared with each other.
 * @typedef {object} Group
 * @property {string} id
 * @property {number[]} rows
 * @property {number[]} rewards those that are known
 * @property {number | null} mean
 * @property {number | null} spread standard deviation
 * @property {number | null} step
 * @property {number | null} task
 * @property {number[]} versions ascending
 * @property {number | null} staleness of its oldest rollout
 * @property {number} trained number of rollouts that were learned from
 * @property {string[]} reasons why the others were not
 */

/** The columns of the run that was looked at last, so that going back to its list is immediate. */
let kept = { key: "", columns: new RolloutColumns() };

/**
 * Reads a run's rollouts, page after page, until all that the server has read are here.
 * @param {string} key of the run
 * @param {AbortSignal} signal
 * @param {(columns: RolloutColumns, changed: boolean) => void} onPart called with what is known
 *     already, after each page that changed something, and at the end
 */
export async function readRollouts(key, signal, onPart) {
  if (kept.key !== key) kept = { key, columns: new RolloutColumns() };
  const { columns } = kept;
  if (columns.length) onPart(columns, false);
  for (let looks = 0; ; looks++) {
    const answer = await get(["runs", key, "rollouts"], { query: { after: columns.next, generation: columns.generation }, signal });
    if (columns.add(answer)) onPart(columns, true);
    if (answer.count > 0) continue;
    const complete = answer.total > 0 ? answer.indexed >= Math.min(answer.total, MOST) : looks >= FIRST_LOOKS;
    if (complete || answer.problem) return onPart(columns, false);
    await pause(PAUSE, signal);
  }
}

function equals(column, value) {
  return (row) => column[row] === value;
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const leave = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", leave);
      resolve(undefined);
    }, milliseconds);
    signal.addEventListener("abort", leave, { once: true });
  });
}
