/**
 * A study: what it came to, its trials, which keys decide, and the best settings.
 * @module
 */

import { get, watchStudy } from "../api.js";
import { element, fill } from "../dom.js";
import { Curve } from "../elements/curve.js";
import { badge, choice, command, fold, load, longText, panel, problem, smallTable, stateBadge } from "../elements/page.js";
import { portions } from "../elements/shares.js";
import { slice } from "../elements/slice.js";
import { counted, moment, number, result, visible } from "../format.js";
import { oneAtATime } from "../one_at_a_time.js";
import { link } from "../router.js";

/** @param {import("../app.js").Page} page */
export async function show(page) {
  const { key } = page.parameters;
  page.title(`${key} · Studies`);
  const body = element("div.stack");
  page.main.append(body);
  const request = () => get(["studies", key], { signal: page.signal });
  load(body, page.signal, request, (study) => new StudyPage(page, body, study, request));
}

class StudyPage {
  constructor(page, body, study, request) {
    this.page = page;
    this.request = request;
    this.study = study;
    this.picked = page.query.has("trial") ? Number(page.query.get("trial")) : null;
    this.order = page.query.get("order") === "score" ? "score" : "number";
    /** @type {Map<Element, string>} what each part was drawn from */
    this.drawn = new Map();
    this.update = oneAtATime(() => this.#renew());
    this.heading = element("div.heading");
    this.trouble = element("div.trouble");
    this.outcome = element("div");
    this.trials = element("div");
    this.slices = element("div.slices");
    this.importance = element("div");
    this.best = element("div");
    this.curve = this.#curve();
    body.append(
      this.heading,
      this.trouble,
      panel("What it came to", this.outcome),
      panel("Score over trials", this.curve.node),
      panel("Trials", this.#orderField(), this.trials),
      panel("Score by value", element("p.note", {}, LEGEND), this.slices),
      panel("Which keys decide", this.importance),
      panel("Best settings", this.best),
    );
    this.draw();
    watchStudy(study.key, page.signal, () => this.update(), (message) => fill(this.trouble, problem(message, null)));
  }

  /** Requests the study anew. */
  async #renew() {
    try {
      const before = this.study;
      this.study = await this.request();
      fill(this.trouble);
      this.draw();
      if (this.study.state !== before.state) this.page.say(`The study is now: ${this.study.state}.`);
      else if (this.study.finished !== before.finished) this.page.say(`${counted(this.study.finished, "trial")} finished.`);
    } catch (error) {
      if (this.page.signal.aborted) return;
      fill(this.trouble, problem(error.message, () => this.update()));
    }
  }

  draw() {
    const { study, picked, order } = this;
    this.#part(this.heading, [study.name, study.state, study.finished, study.trials, study.updated], () => this.#heading());
    this.#part(this.outcome, [study.conclusion, study.confirmation, study.compared, study.state], () => this.#outcome());
    this.#part(this.trials, [study.tried, study.best_trial, picked, order], () => this.#trialTable());
    const values = study.tried.map(({ runs, ...rest }) => rest);
    this.#part(this.slices, [study.space, values, study.best_trial], () => this.#slices());
    this.#part(this.importance, [study.importance, study.importance_note], () => this.#importance());
    this.#part(this.best, [study.best_yaml, study.best_is_current, study.state], () => this.#best());
    this.#drawCurve();
  }

  /** Draws a part anew only if what it shows has changed, so that the reader's focus and selection stay. */
  #part(node, data, draw) {
    const text = JSON.stringify(data);
    if (this.drawn.get(node) === text) return;
    this.drawn.set(node, text);
    fill(node, ...draw());
  }

  #format(value) {
    return result(value, this.study.is_share);
  }

  #heading() {
    const { study } = this;
    const seeds = study.seeds.length === 1 ? `seed ${study.seeds[0]}` : `mean of seeds ${study.seeds.join(", ")}`;
    const scored = `Score: mean reward on ${visible(study.held_out)} after ${counted(study.steps, "step")}, ${seeds}`;
    const counts = `${number(study.finished)} of ${counted(study.trials, "trial")} finished`;
    return [
      element(
        "div.crumbs",
        {},
        element("nav", { "aria-label": "Breadcrumb" }, element("a", { href: "#/studies" }, "Studies"), " / ", visible(study.name)),
        stateBadge(study.state),
        element("span.note", {}, `${counts}, ${moment(study.updated)}`),
      ),
      element("h1", {}, visible(study.name)),
      element("p.note", {}, `${scored}${study.prunes ? "; a trial below the median is stopped early" : ""}.`),
    ];
  }

  #outcome() {
    const { study } = this;
    const sentences = study.conclusion.map((line) => element("li", {}, visible(sentence(line))));
    const isOpen = study.state !== "ended" && element("p.note", {}, "So far:");
    const compare =
      study.compared.length > 1 &&
      element("p", {}, element("a", { href: link(["compare"], { runs: study.compared.join(",") }) }, "Compare the best with the default"));
    return [isOpen, element("ul", {}, sentences), compare, study.confirmation && this.#confirmation(study.confirmation)];
  }

  #confirmation(found) {
    const { default_trial: other } = this.study;
    const runsOf = (number) => found.runs.filter((run) => run.name.startsWith(`confirm-${number}-`));
    const rows = [
      [`Trial ${found.trial}`, this.#format(found.best), runLinks(runsOf(found.trial), () => "")],
      [`Default (trial ${other})`, this.#format(found.default), runLinks(runsOf(other), () => "")],
    ];
    const keys = found.runs.map((run) => run.key).filter(Boolean);
    return element(
      "section.stack",
      { "aria-label": "Confirmation" },
      element("h3", {}, `Confirmation on ${visible(found.held_out)}, seeds ${found.seeds.join(", ")}`),
      smallTable("Confirmation", ["Settings", ">Score", "Runs"], rows),
      keys.length > 1 && element("p", {}, element("a", { href: link(["compare"], { runs: keys.slice(0, 8).join(",") }) }, "Compare these runs")),
    );
  }

  #orderField() {
    const options = [
      ["number", "as they began"],
      ["score", "best first"],
    ];
    return choice("Order", options, this.order, (order) => {
      this.order = order;
      this.page.remember({ order: order === "number" ? null : order });
      this.draw();
    });
  }

  #trialTable() {
    const { study, order, picked } = this;
    if (!study.tried.length) return [element("p.note", {}, "No trial has begun.")];
    const trials = order === "score" ? [...study.tried].sort((a, b) => (b.score ?? -Infinity) - (a.score ?? -Infinity)) : study.tried;
    const head = [">Trial", ">Score", ...study.space.map((one) => `>${visible(one.key)}`), "State", "Runs", "Notes"];
    const table = smallTable("Trials", head, trials.map((trial) => this.#trialRow(trial)));
    const rows = table.querySelectorAll("tbody tr");
    for (const [index, trial] of trials.entries()) if (trial.number === picked) rows[index].classList.add("picked");
    return [table];
  }

  #trialRow(trial) {
    const { study } = this;
    const notes = [
      trial.default && badge("default"),
      trial.number === study.best_trial && badge("best", "good"),
      trial.past && badge("past run"),
      trial.reason && element("span.note", {}, visible(trial.reason)),
    ];
    return [
      element("button.plain", { type: "button", "aria-pressed": String(trial.number === this.picked), "aria-label": `Trial ${trial.number}`, onclick: () => this.#pick(trial.number) }, number(trial.number)),
      element("span.whole-line", {}, this.#format(trial.score)),
      ...study.space.map((one) => visible(trial.shown[one.key])),
      stateBadge(trial.state),
      runLinks(trial.runs, (score) => this.#format(score)),
      element("span.bar", {}, notes),
    ];
  }

  #pick(number) {
    this.picked = this.picked === number ? null : number;
    this.page.remember({ trial: this.picked });
    this.draw();
    if (this.picked !== null) this.page.say(`Trial ${number}`);
  }

  #curve() {
    const series = [{ name: "score", alone: true }, { name: "best so far" }, { name: "stopped early", alone: true }, { name: "default" }];
    return new Curve("Score by trial", series, {
      signal: this.page.signal,
      sync: "study",
      format: (value) => this.#format(value),
      onPick: (trial) => this.#pick(trial),
      onZoom: () => {},
    });
  }

  #drawCurve() {
    const { tried } = this.study;
    const own = this.study.default;
    let best = null;
    const soFar = tried.map((trial) => {
      if (trial.state === "finished" && trial.score !== null) best = Math.max(best ?? -Infinity, trial.score);
      return best;
    });
    const scores = (isStopped) => tried.map((trial) => ((trial.state === "pruned") === isStopped ? trial.score : null));
    this.curve.setData(
      tried.map((trial) => trial.number),
      [scores(false), soFar, scores(true), tried.map(() => own)],
    );
    this.curve.setMarks([], this.picked);
  }

  #slices() {
    const { study } = this;
    const options = { format: (value) => this.#format(value), best: study.best_trial, onPick: (trial) => this.#pick(trial) };
    if (study.tried.filter((trial) => trial.score !== null).length < 2)
      return [element("p.note", {}, "It takes two trials with a score.")];
    return study.space.map((one) => slice(one, study.tried, options));
  }

  #importance() {
    const { importance, importance_note: note } = this.study;
    const parts = Object.entries(importance ?? {}).sort((a, b) => b[1] - a[1]);
    return [parts.length ? portions("Importance of the searched keys", "Key", parts) : null, element("p.note", {}, visible(sentence(note)))];
  }

  #best() {
    const { study } = this;
    if (study.best_yaml === null) return [element("p.note", {}, "leyden tune writes the best settings to best.yaml when it ends.")];
    const stale = !study.best_is_current && element("p.notice.warn", {}, "best.yaml is from an earlier report; leyden tune writes it anew when it ends.");
    return [
      stale,
      element("p", {}, "This command trains with them:"),
      command(study.train_command),
      fold("best.yaml", (body) => body.append(longText(study.best_yaml, { name: "best.yaml" }))),
    ];
  }
}

const LEGEND = "Circles: finished trials. Hollow: stopped early, with the last score. Diamond: the default. Ring: the best.";

/** Links to the runs of a trial, one for each seed; a run outside the console's folders is only named. */
function runLinks(runs, format) {
  const shown = runs.map((run) => {
    const seed = `seed ${run.seed}`;
    const more = run.state === "running" ? `step ${number(run.step)} of ${number(run.steps)}` : run.score === null ? "" : format(run.score);
    return [run.key ? element("a", { href: link(["runs", run.key]) }, seed) : seed, more ? ` ${more}` : ""];
  });
  return element("span.whole-line", {}, shown.flatMap((one, index) => (index ? [" · ", ...one] : one)));
}

/** A line of the report as a sentence. */
function sentence(line) {
  return `${line.charAt(0).toUpperCase()}${line.slice(1)}${/[.!?]$/.test(line) ? "" : "."}`;
}
