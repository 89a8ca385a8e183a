/**
 * Overview of a run: live curves, the numbers of one step, where the time went, and whether it still improves.
 * @module
 */

import { actionsAllowed, get } from "../api.js";
import { trend } from "../convergence.js";
import { element, fill, setText } from "../dom.js";
import { action } from "../elements/action.js";
import { Curve } from "../elements/curve.js";
import { command, empty, facts, failure, fold, longText, panel, STATES } from "../elements/page.js";
import { shares } from "../elements/shares.js";
import { duration, moment, number, percent, plain, result, signed, visible } from "../format.js";
import { oneAtATime } from "../one_at_a_time.js";
import { link } from "../router.js";
import { SMOOTHING, StepSeries } from "../series.js";
import { inTheFolder, runFrame } from "./run_frame.js";

/** @param {import("../app.js").Page} page */
export async function show(page) {
  /** @type {RunPage | null} */
  let shown = null;
  const frame = runFrame(page, "", [], (run, body) => {
    shown = new RunPage(page, run, body);
    shown.update();
  });
  frame.onChange((change) => shown?.changed(change));
}

class RunPage {
  constructor(page, run, body) {
    this.page = page;
    this.run = run;
    this.data = new StepSeries();
    /** @type {{curve: Curve, values: () => {steps: number[], columns: (number | null)[][]}}[]} */
    this.charts = [];
    this.chartScope = new AbortController();
    this.smoothing = Number(page.query.get("smooth") ?? 0);
    this.zoom = readRange(page.query.get("zoom"));
    this.picked = page.query.has("step") ? Number(page.query.get("step")) : null;
    this.text = page.query.get("text") ?? "";
    this.numbersOpen = false;
    this.othersOpen = page.query.get("others") === "open";
    this.update = oneAtATime(() => this.#request());
    page.signal.addEventListener("abort", () => this.chartScope.abort(), { once: true });
    this.trend = element("p.note");
    this.tokens = element("p.note");
    this.failed = element("div");
    this.ended = element("div.trouble", { role: "status" });
    this.#drawEnd();
    this.actions = element("div.stack");
    this.state = run.state;
    /** @type {number | null} when the run will end, in seconds since 1970; null if that is not known */
    this.ends = null;
    this.rollouts = element("span", {}, run.rollouts ? number(run.rollouts) : "–");
    this.grid = element("div.charts", {}, element("p.note", { "aria-busy": "true" }, "Loading…"));
    this.stepPanel = element("section.panel", { "aria-label": "The chosen step", hidden: true });
    this.othersGrid = element("div.charts");
    this.othersTitle = element("summary");
    this.others = element("details.fold", { hidden: true }, this.othersTitle, element("div.fold-body", {}, this.othersGrid));
    this.others.addEventListener("toggle", () => this.#toggleOthers());
    const below = this.#below();
    const [summary, controls] = [this.#summary(), this.#controls()];
    body.append(...summary, this.actions, this.failed, controls, this.stepPanel, this.grid, this.others, ...below);
  }

  /** Requests what is new since the last answer. */
  async #request() {
    try {
      const { lines, generation } = this.data;
      const query = generation ? { after: lines, generation } : {};
      const answer = await get(["runs", this.run.key, "steps"], { query, signal: this.page.signal });
      const renewed = this.data.add(answer);
      fill(this.failed);
      if (renewed || !this.data.steps.length) this.#makeCharts();
      this.#draw();
    } catch (error) {
      if (this.page.signal.aborted) return;
      fill(
        this.failed,
        failure(error, () => this.update()),
      );
    }
  }

  changed(change) {
    if (change.state !== this.state) {
      this.#actions(this.actions);
      this.#drawEnd();
    }
    const ends = change.ends ?? null;
    const isOther = ends !== this.ends || change.state !== this.state;
    Object.assign(this, { state: change.state, ends });
    if (isOther) setText(this.trend, this.#trendText());
    if (change.rollouts) setText(this.rollouts, number(change.rollouts));
    if (change.lines !== this.data.lines || change.generation !== this.data.generation) this.update();
  }

  #summary() {
    const { run } = this;
    const held = run.held_out.map((one) => [
      `${one.name}: before → after`,
      `${result(one.before, one.is_share)} → ${result(one.after, one.is_share)}`,
    ]);
    const entries = [
      ["Algorithm", run.algorithm],
      ["Policy", run.policy ?? run.endpoint],
      ["Agent", run.agent],
      ["Experiment", run.experiment],
      ["Tags", run.tags.join(", ")],
      ["Began", run.began && moment(run.began)],
      ["Rollouts", this.rollouts],
      ...held,
    ]
      .filter(([, value]) => value !== null && value !== "")
      .map(([name, value]) => [name, typeof value === "string" ? visible(value) : value]);
    return [
      this.ended,
      ...run.alerts
        .filter((one) => one.until === null)
        .map((one) => element("p.notice.warn", {}, `Since step ${one.since}: ${visible(one.message)}`)),
      panel("Summary", facts(entries), this.trend, this.tokens),
    ].filter(Boolean);
  }

  /** Why the run ended early, if it did. */
  #drawEnd() {
    const { state, error } = this.run;
    const tone = { bad: ".bad", warn: ".warn" }[STATES[state]] ?? "";
    fill(this.ended, error && element(`p.notice${tone}`, {}, visible(`${state}: ${error}`)));
  }

  #controls() {
    const { page } = this;
    const amount = element("span", {}, `Smoothing ${SMOOTHING[this.smoothing] ?? 0}`);
    const slider = element("input", {
      type: "range",
      min: 0,
      max: SMOOTHING.length - 1,
      step: 1,
      value: this.smoothing,
    });
    slider.addEventListener("input", () => {
      this.smoothing = Number(slider.value);
      amount.textContent = `Smoothing ${SMOOTHING[this.smoothing]}`;
      page.remember({ smooth: this.smoothing || null });
      for (const { curve } of this.charts) curve.setSmoothing(SMOOTHING[this.smoothing]);
    });
    const text = element("input", { type: "search", value: this.text, placeholder: "reward, entropy …" });
    text.addEventListener("input", () => {
      this.text = text.value;
      page.remember({ text: this.text });
      this.#makeCharts();
      this.#draw();
    });
    this.from = this.#stepField(0);
    this.to = this.#stepField(1);
    const all = element("button", { type: "button", onclick: () => this.#setZoom(null) }, "All steps");
    this.#showZoom();
    this.stepField = element("input", { type: "number", min: 0, value: this.picked ?? "" });
    this.stepField.addEventListener("change", () => this.stepField.value && this.#pick(Number(this.stepField.value)));
    return element(
      "div.bar",
      {},
      element("label.field", {}, element("span", {}, "Search series"), text),
      element("label.field", {}, amount, slider),
      element("label.field", {}, element("span", {}, "From step"), this.from),
      element("label.field", {}, element("span", {}, "To step"), this.to),
      all,
      element("label.field", {}, element("span", {}, "Look at step"), this.stepField),
      element("p.note", {}, "Drag in a chart to zoom. Click in it to look at a step."),
    );
  }

  #stepField(position) {
    const field = element("input", { type: "number", min: 0 });
    field.addEventListener("change", () => {
      const steps = this.data.steps;
      const range = this.zoom ?? [steps[0] ?? 0, steps[steps.length - 1] ?? 1];
      range[position] = Number(field.value);
      if (range[0] < range[1]) this.#setZoom([range[0], range[1]]);
    });
    return field;
  }

  #setZoom(range) {
    this.zoom = range;
    this.page.remember({ zoom: range && range.join("-") });
    this.#showZoom();
    for (const { curve } of this.charts) curve.setZoom(range);
  }

  #showZoom() {
    this.from.value = this.zoom ? String(this.zoom[0]) : "";
    this.to.value = this.zoom ? String(this.zoom[1]) : "";
  }

  /** New charts: the first time, and when the series of the run or the reader's search changed. */
  #makeCharts() {
    this.chartScope.abort();
    this.chartScope = new AbortController();
    const wanted = (name) => name.toLowerCase().includes(this.text.toLowerCase());
    const groups = this.data
      .charts()
      .map(({ title, series, folded }) => ({
        title,
        folded,
        names: series.filter((name) => wanted(name) || wanted(title)),
      }))
      .filter(({ names }) => names.length);
    const [shown, others] = [groups.filter((one) => !one.folded), groups.filter((one) => one.folded)];
    const first = shown.map(({ title, names }) => this.#chart(title, names));
    const held = this.data.heldOutNames();
    if (held.length && wanted("held-out")) first.splice(1, 0, this.#heldOutChart(held));
    // those that a search has found are shown, also if they are folded otherwise
    const open = this.othersOpen || this.text !== "";
    const more = open ? others.map(({ title, names }) => this.#chart(title, names)) : [];
    const nodes = (charts) => charts.map(({ curve }) => curve.node);
    this.charts = [...first, ...more];
    fill(this.grid, nodes(first));
    fill(this.othersGrid, nodes(more));
    setText(this.othersTitle, `Other series (${number(others.flatMap(({ names }) => names).length)})`);
    this.others.hidden = !others.length;
    this.others.open = open;
    if (!first.length && !others.length) fill(this.grid, this.#noCharts());
  }

  /** The reader has opened or closed the other series. */
  #toggleOthers() {
    const { open } = this.others;
    if (this.text || open === this.othersOpen) return;
    this.othersOpen = open;
    this.page.remember({ others: open ? "open" : null });
    this.#makeCharts();
    this.#draw();
  }

  #noCharts() {
    if (this.data.steps.length) return element("p.note", {}, "No series has such a name.");
    if (this.run.state === "running") return element("p.note", {}, "The curves begin with the run's first step.");
    if (this.run.folder === null) return empty("The store has no step of this run.");
    const next = this.run.commands[0]?.command;
    const nothing = "This run has taken no step.";
    return next ? empty(`${nothing} To go on with it, or to see what happened:`, next) : empty(nothing);
  }

  #chart(title, names) {
    const curve = this.#curve(
      title,
      names.map((name) => ({ name })),
      {},
    );
    return { curve, values: () => ({ steps: this.data.steps, columns: names.map((name) => this.data.series[name]) }) };
  }

  #heldOutChart(names) {
    const share = this.run.held_out.every((one) => one.is_share);
    const curve = this.#curve(
      "Held-out tasks",
      names.map((name) => ({ name, points: true })),
      share ? { format: percent } : {},
    );
    const values = () => {
      const { steps, series } = this.data.heldOut();
      return { steps, columns: names.map((name) => series[name]) };
    };
    return { curve, values };
  }

  #curve(title, series, more) {
    return new Curve(title, series, {
      signal: this.chartScope.signal,
      sync: this.run.key,
      onPick: (step) => this.#pick(step),
      onZoom: (range) => this.#setZoom(range),
      ...more,
    });
  }

  #draw() {
    for (const { curve, values } of this.charts) {
      curve.weight = SMOOTHING[this.smoothing] ?? 0;
      curve.zoomed = this.zoom;
      const { steps, columns } = values();
      curve.setData(steps, columns);
      curve.setMarks(this.data.alerts, this.picked);
    }
    setText(this.trend, this.#trendText());
    setText(this.tokens, this.#tokensText());
    this.#drawStep();
  }

  #trendText() {
    const { verdict, slope, error, level, steps } = trend(this.data.steps, this.data.series.reward ?? []);
    const left = this.ends === null ? 0 : this.ends - Date.now() / 1000;
    const time = this.state === "running" && left > 0 ? ` About ${duration(left)} are left.` : "";
    if (verdict === "unknown") return `Too few steps to tell whether the reward converges.${time}`;
    const rate = `${signed(slope * 10)} ± ${number(2 * error * 10)} per 10 steps over the last ${steps} steps`;
    const words = {
      rising: "The reward still rises",
      falling: "The reward falls",
      flat: "The reward has levelled off",
      unclear: "Whether the reward still rises cannot be told from its noise",
    };
    return `${words[verdict]} (${rate}), at about ${number(level)}.${time}`;
  }

  #tokensText() {
    const sum = (name) => (this.data.series[name] ?? []).reduce((total, value) => total + (value ?? 0), 0);
    const names = { tokens_trained: "trained", tokens_read: "read in training", tokens_generated: "generated" };
    const known = Object.entries(names).filter(([name]) => name in this.data.series);
    return known.length ? `Tokens: ${known.map(([name, word]) => `${number(sum(name))} ${word}`).join(", ")}.` : "";
  }

  #pick(step) {
    this.picked = step;
    this.page.remember({ step });
    this.stepField.value = String(step);
    this.#drawStep();
    this.page.say(`Step ${step}`);
    for (const { curve } of this.charts) curve.setMarks(this.data.alerts, step);
  }

  /** The numbers of the chosen step, and the links to its rollouts. */
  #drawStep() {
    const { picked } = this;
    this.stepPanel.hidden = picked === null;
    if (picked === null) return;
    const { key } = this.run;
    const row = this.data.steps.indexOf(picked);
    const values = Object.entries(this.data.series).map(([name, column]) => [name, number(column[row] ?? null)]);
    const alerts = this.data.alerts.filter((alert) => alert.step === picked);
    fill(
      this.stepPanel,
      element("h2", {}, `Step ${number(picked)}`),
      element(
        "p.bar",
        {},
        element("a", { href: link(["runs", key, "rollouts"], { step: picked }) }, "Its rollouts"),
        element("a", { href: link(["runs", key, "steps", picked]) }, "Its loss, call by call"),
      ),
      alerts.map((alert) => element("p.notice.warn", {}, visible(alert.message))),
      row >= 0 ? this.#numbers(values) : element("p.note", {}, "The run has no numbers of this step."),
    );
  }

  /** All numbers of the chosen step; they stay open while the reader goes from step to step. */
  #numbers(values) {
    const details = fold("All its numbers", (body) => body.append(facts(values)), this.numbersOpen);
    details.addEventListener("toggle", () => (this.numbersOpen = details.open));
    return details;
  }

  #below() {
    const { phases } = this.run;
    const time = panel(
      "Where the time went",
      phases.length ? shares("Seconds of each phase", phases) : inTheFolder(this.run, "This is"),
    );
    const commands = panel(
      "Commands",
      element("p", {}, element("a", { href: link(["runs", this.run.key, "suggestions"]) }, "Suggest settings")),
      ...this.run.commands.map((one) => element("div", {}, element("p.note", {}, one.what), command(one.command))),
    );
    this.#actions(this.actions);
    const config = fold("Configuration", (body) =>
      body.append(longText(plain(this.run.config), { name: "configuration" })),
    );
    const report =
      this.run.report && fold("Report", (body) => body.append(longText(plain(this.run.report), { name: "report" })));
    const columns = element("div.columns", {}, time, this.run.commands.length ? commands : null);
    return [columns, config, report].filter(Boolean);
  }

  /** What the console can do with the run, if it is allowed to. */
  async #actions(target) {
    const { run, page } = this;
    if (run.folder === null) return;
    const again = element("a", { href: link(["runs", run.key, "launch"]) }, "New run like this one");
    if (!(await actionsAllowed().catch(() => false))) return;
    const { signal } = page;
    const stop = `Stop the run ${visible(run.label)}? It ends after its last checkpoint, and can be continued.`;
    fill(
      target,
      element(
        "div.bar",
        { role: "group", "aria-label": "Actions" },
        run.state === "running" && action("Stop", { path: () => ["runs", run.key, "stop"], question: stop, signal }),
        ["stopped", "failed", "interrupted", "not finished"].includes(run.state) &&
          action("Continue", { path: () => ["runs", run.key, "resume"], signal }),
        again,
      ),
    );
  }
}

/** @returns {[number, number] | null} */
function readRange(text) {
  const [from, to] = (/^(\d+)-(\d+)$/.exec(text ?? "") ?? []).slice(1).map(Number);
  return from < to ? [from, to] : null;
}
