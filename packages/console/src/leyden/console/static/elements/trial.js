/**
 * A trial: its job, a row for each task with both variants, the rollouts of a task side by side, and the result.
 * @module
 */

import { get } from "../api.js";
import { element, fill } from "../dom.js";
import { brief, counted, duration, number, percent, points, signed, visible } from "../format.js";
import { parse } from "../router.js";
import { differences } from "./diff.js";
import { jobPanel } from "./job.js";
import { badge, choice, facts, fold, load, panel, problem, smallTable } from "./page.js";
import { pair } from "./rollout_pair.js";
import { Table } from "./table.js";

/** Milliseconds between two looks at a trial that runs. */
const LOOK = 1000;
const FINISHED = ["succeeded", "failed", "cancelled"];
const VARIANTS = ["a", "b"];

export class Trial {
  /**
   * @param {import("../app.js").Page} page
   * @param {any} job
   */
  constructor(page, job) {
    this.page = page;
    this.job = job;
    this.repeats = Number(job.subject.repeats ?? 1);
    this.tasks = [];
    /** @type {Map<string, any>} rollouts by variant, row and repeat */
    this.rollouts = new Map();
    this.cursor = { after: 0, generation: null };
    this.key = "";
    this.ended = false;
    this.shown = "";
    const { signal } = page;
    this.result = element("div.stack");
    this.trouble = element("div");
    this.texts = element("div");
    this.pair = element("div.stack");
    this.table = new Table("Tasks", this.#columns(), { signal, open: (row) => this.#open(row) });
    const titles = VARIANTS.map((name) => [name.toUpperCase(), visible(job.subject[name] ?? "")]);
    const listeners = { onEnd: (ended) => this.#end(ended) };
    this.node = element(
      "div.stack",
      {},
      facts([...titles, ["Tasks", visible(job.subject.tasks ?? "")]]),
      this.texts,
      jobPanel(job, signal, listeners),
      this.result,
      this.trouble,
      panel("Tasks", this.table.node),
      this.pair,
    );
    this.#look();
  }

  async #look() {
    const { signal } = this.page;
    const again = () => !signal.aborted && setTimeout(() => this.#look(), LOOK);
    if (document.hidden) return again();
    try {
      const answer = await get(["jobs", this.job.id, "trial"], { query: this.cursor, signal });
      fill(this.trouble, answer.problem && problem(answer.problem, null));
      this.#read(answer);
      if (!answer.ended) again();
    } catch (error) {
      if (signal.aborted) return;
      fill(this.trouble, problem(error.message, () => this.#look()));
    }
  }

  #read(answer) {
    if (answer.generation !== this.cursor.generation) this.rollouts.clear();
    this.cursor = { after: answer.next, generation: answer.generation };
    this.key = answer.key;
    this.ended = answer.ended;
    const first = this.tasks.length === 0 && answer.tasks;
    if (answer.tasks) this.tasks = answer.tasks;
    if (answer.texts && !this.texts.hasChildNodes()) fill(this.texts, textsOf(answer.texts));
    for (const one of answer.rollouts) this.rollouts.set(`${one.variant}-${one.row}-${one.repeat}`, one);
    this.table.setRows(this.tasks.map((_, row) => row));
    const { query } = this.page;
    if (first && query.get("task") !== null) this.row = Number(query.get("task")) - 1;
    if (this.row !== undefined) this.#showPair();
  }

  #columns() {
    const mean = (name) => (row) => this.#mean(name, row);
    const side = (name) => ({
      key: name,
      title: name.toUpperCase(),
      width: 100,
      text: (row) => this.#state(name, row),
      value: mean(name),
      tone: (row) => this.#tone(name, row),
    });
    const difference = (row) => {
      const [a, b] = VARIANTS.map((name) => this.#mean(name, row));
      return a === null || b === null ? null : b - a;
    };
    return [
      { key: "task", title: "Task", width: 60, number: true, text: (row) => number(row + 1), value: (row) => row },
      { key: "input", title: "Input", width: 560, wide: true, text: (row) => brief(this.tasks[row]) },
      side("a"),
      side("b"),
      {
        key: "difference",
        title: "B − A",
        width: 75,
        number: true,
        text: (row) => (difference(row) === null ? "" : signed(difference(row))),
        value: difference,
        tone: (row) => ((difference(row) ?? 0) > 0 ? "good" : (difference(row) ?? 0) < 0 ? "bad" : ""),
      },
    ];
  }

  #of(name, row) {
    const all = Array.from({ length: this.repeats }, (_, repeat) => this.rollouts.get(`${name}-${row}-${repeat}`));
    return all.filter((one) => one !== undefined);
  }

  /** Mean reward of a task's finished rollouts; one that failed earned 0. */
  #mean(name, row) {
    const rewards = this.#of(name, row)
      .filter((one) => one.status === "failed" || one.status === "succeeded")
      .map((one) => (one.status === "failed" ? 0 : one.reward))
      .filter((reward) => reward !== null);
    return rewards.length ? rewards.reduce((sum, one) => sum + one, 0) / rewards.length : null;
  }

  #state(name, row) {
    const all = this.#of(name, row);
    if (this.repeats > 1) {
      const done = all.filter((one) => FINISHED.includes(one.status)).length;
      const reward = done ? `${number(this.#mean(name, row))} · ` : "";
      return done === this.repeats ? number(this.#mean(name, row)) : `${reward}${done} of ${this.repeats} runs`;
    }
    const [one] = all;
    if (one?.status === "succeeded") return one.reward === null ? "no reward" : number(one.reward);
    if (one && FINISHED.includes(one.status)) return one.status;
    if (this.ended) return one?.status === "interrupted" ? one.status : "not finished";
    if (one?.status !== "running") return "waiting";
    return one.calls ? counted(one.calls, "call") : "running";
  }

  #tone(name, row) {
    const statuses = this.#of(name, row).map((one) => one.status);
    if (statuses.includes("failed")) return "bad";
    return !this.ended && statuses.includes("running") ? "live" : "";
  }

  // --- The rollouts of a task

  #open(row) {
    this.row = row;
    this.page.remember({ task: row + 1, repeat: null, attempt0: null, span0: null, attempt1: null, span1: null });
    this.#showPair();
    requestAnimationFrame(() => this.pair.scrollIntoView({ block: "start" }));
    return null;
  }

  /** Shows both rollouts, or shows them again if they have gone on. */
  async #showPair() {
    const { page, row } = this;
    const { query } = parse(location.hash);
    const repeat = Math.min(Number(query.get("repeat") ?? 1), this.repeats) - 1;
    const both = VARIANTS.map((name) => this.rollouts.get(`${name}-${row}-${repeat}`));
    if (both.includes(undefined)) return fill(this.pair, element("p.note", {}, "Its rollouts have not begun."));
    const shown = JSON.stringify([repeat, ...both]);
    const isOpen = this.shown !== "" && JSON.parse(this.shown)[1].id === both[0].id;
    if (shown === this.shown || (isOpen && this.pair.contains(document.activeElement) && !this.ended)) return;
    this.shown = shown;
    const names = both.map(({ id }) => ({ run: this.key, id }));
    const titles = VARIANTS.map((name) => `${name.toUpperCase()}: ${this.job.subject[name] ?? ""}`);
    const request = () =>
      Promise.all(names.map(({ run, id }) => get(["runs", run, "rollouts", id], { signal: page.signal })));
    const target = isOpen ? element("div") : this.pair;
    await load(target, page.signal, request, (rollouts) => {
      if (shown !== this.shown) return;
      fill(
        this.pair,
        element("h2", {}, `Task ${number(row + 1)}`),
        this.repeats > 1 && this.#repeatChoice(repeat),
        pair({ ...page, query: parse(location.hash).query }, names, rollouts, titles),
      );
    });
  }

  #repeatChoice(repeat) {
    const options = Array.from({ length: this.repeats }, (_, at) => [String(at + 1), `run ${at + 1}`]);
    return choice("Run of the task", options, String(repeat + 1), (value) => {
      this.page.remember({ repeat: value, attempt0: null, span0: null, attempt1: null, span1: null });
      this.shown = "";
      this.#showPair();
    });
  }

  // --- The result

  #end(job) {
    this.#look();
    if (job.result === null) return;
    fill(this.result, resultPanel(job.result));
    this.page.say(`The comparison has ended: ${job.result.verdict || job.result.problems.join(" ")}`);
  }
}

/** The texts of both variants, folded: how those of B differ from those of A, and then each whole. */
function textsOf({ a, b }) {
  const [ofA, ofB] = [a, b].map((texts) => Object.keys(texts).length);
  if (!ofA && !ofB) return null;
  const whole = (name, texts) =>
    Object.keys(texts).length > 0 && fold(`All of variant ${name}`, (body) => body.append(...differences(null, texts)));
  return fold("Texts of both variants", (body) => {
    const changed = ofA && ofB ? [element("p.note", {}, "What B changes in the texts of A:"), ...differences(a, b)] : [];
    fill(body, ...changed, whole("A", a), whole("B", b));
  });
}

/** @param {any} trial the result of `leyden prompts try --json` */
function resultPanel(trial) {
  const compared = Object.entries({ ...(trial.reward && { reward: trial.reward }), ...trial.dimensions });
  return panel(
    "Result",
    trial.verdict && element("p", {}, element("strong", {}, sentence(trial.verdict))),
    ...trial.problems.map((text) => element("p.notice.bad", {}, badge("problem", "bad"), visible(text))),
    ...trial.notes.map((text) => element("p.note", {}, visible(sentence(text)))),
    compared.length > 0 &&
      smallTable(
        "Paired differences",
        ["", ">Tasks", ">A", ">B", ">B − A", ">95 % interval", ">Won", ">Lost", ">Tied", ">Sign test, p"],
        compared.map(([name, found]) => difference(name, found)),
      ),
    smallTable("What both variants used", ["", ">A", ">B"], used(trial)),
  );
}

function difference(name, found) {
  const [value, apart] = found.is_share ? [percent, points] : [number, signed];
  const interval = found.interval === null ? "–" : found.interval.map(apart).join(" to ");
  const counts = [found.wins, found.losses, found.ties].map(number);
  const means = [value(found.a), value(found.b), apart(found.difference)];
  return [visible(name), number(found.tasks), ...means, interval, ...counts, number(found.p_value)];
}

function used({ a, b, cost_unknown: unknown }) {
  const rows = [
    ["Rollouts", (use) => number(use.rollouts)],
    ["Failed", (use) => (use.failed ? `${number(use.failed)}: ${visible(use.failures)}` : "0")],
    ["Without a reward", (use) => number(use.unrewarded)],
    ["Model calls", (use) => number(use.calls)],
    ["Calls with a replaced text", (use) => number(use.edited_calls)],
    ["Tokens in", (use) => number(use.input_tokens)],
    ["Tokens out", (use) => number(use.output_tokens)],
    ["Time of a rollout", (use) => duration(use.seconds)],
    ["Cost", (use) => (use.cost === null ? `unknown: ${visible(unknown)}` : `$${number(use.cost)}`)],
  ];
  return rows.map(([name, text]) => [name, text(a), text(b)]);
}

function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}
