/**
 * Suggestions for a run: a prepared search for better settings, which the reader changes, copies or starts.
 * @module
 */

import { actionsAllowed, get, post } from "../../api.js";
import { element, fill } from "../../dom.js";
import { jobPanel } from "../../elements/job.js";
import { command, empty, load, panel, problem } from "../../elements/page.js";
import { brief, counted, shellWord, visible } from "../../format.js";
import { link } from "../../router.js";
import { runFrame } from "../run_frame.js";

/** Keys that are searched unless the reader chooses others. */
const CHOSEN = ["learning_rate", "credit", "epochs"];
const TRIALS = "12";
const SEEDS = "0,1,2";
/** Milliseconds between two looks for a study that has been started. */
const LOOK_AGAIN = 1000;

/** @param {import("../../app.js").Page} page */
export async function show(page) {
  const { key } = page.parameters;
  runFrame(page, "suggestions", [["Suggest settings", null]], (run, body) => {
    const target = element("div.stack");
    body.append(target);
    const request = async () => ({
      found: await get(["runs", key, "suggestions"], { signal: page.signal }),
      allowed: await actionsAllowed(),
    });
    load(target, page.signal, request, ({ found, allowed }) => draw(page, target, found, allowed));
  });
}

function draw(page, target, found, allowed) {
  if (found.problem) {
    const study = found.study && element("a", { href: link(["studies", found.study]) }, "Open the study");
    return target.append(element("div.empty", {}, element("p", {}, visible(found.problem)), study));
  }
  const form = new Form(page, found);
  const start = element("div.stack");
  target.append(panel("Keys to search", element("p.note", {}, past(found)), form.keys), panel("The search", form.options), panel("Command", form.command, start));
  if (allowed) offerStart(page, form, start);
  else start.append(empty("This console only reads. It can start the command itself if it is started so:", "leyden console --allow-actions"));
}

function past(found) {
  const set = visible(found.held_out[0]);
  const trials = `Trials are compared on ${set}; the run's own settings are the default, which they have to beat.`;
  if (!found.past) return `${trials} No other run like this one has finished, so the search begins with nothing.`;
  return `${trials} ${counted(found.past, "other finished run")} like this one may become ${found.past === 1 ? "a trial" : "trials"}.`;
}

/** The fields of the search. Every value is in the address. */
class Form {
  constructor(page, found) {
    this.page = page;
    this.found = found;
    this.listeners = [];
    const chosen = page.query.get("keys")?.split(",") ?? CHOSEN;
    this.rows = found.keys.map((one) => this.#keyRow(one, chosen.includes(one.key)));
    this.more = this.#field("more", "Another key", "", { placeholder: "KEY=LOW..HIGH" });
    this.keys = element(
      "div.stack",
      {},
      element("div.key-rows", { role: "group", "aria-label": "Keys" }, this.rows.map((row) => row.node)),
      this.more.node,
    );
    this.name = this.#field("name", "Name of the study", found.name);
    this.trials = this.#field("trials", "Trials", TRIALS, { type: "number", min: 2 });
    this.seeds = this.#field("seeds", "Seeds of each trial", SEEDS);
    this.steps = this.#field("steps", "Steps of each trial", found.steps ?? "", { type: "number", min: 1 });
    this.confirm = this.#field("confirm", "Confirm on", "", { placeholder: "file of other held-out tasks" });
    this.options = element(
      "div.stack",
      {},
      element("div.bar", {}, [this.name, this.trials, this.seeds, this.steps, this.confirm].map((field) => field.node)),
      element(
        "p.note",
        {},
        "Each trial is a run for each seed. With “Confirm on”, the best settings and the default are trained anew with other seeds and compared on these tasks.",
      ),
    );
    this.command = element("div");
    this.changed();
  }

  /** What the server starts. */
  body() {
    const steps = this.steps.input.value;
    return {
      run: this.page.parameters.key,
      name: this.name.input.value.trim(),
      search: this.#searches(),
      trials: Number(this.trials.input.value) || 0,
      seeds: this.seeds.input.value.trim(),
      steps: steps === "" || Number(steps) === this.found.steps ? null : Number(steps),
      confirm: this.confirm.input.value.trim() || null,
    };
  }

  changed() {
    const { name, search, trials, seeds, steps, confirm } = this.body();
    /** @type {[string, string | number | null][]} */
    const options = [
      ["--config", this.found.config],
      ...search.map((one) => ["--search", one]),
      ["--name", name],
      ["--trials", trials],
      ["--seeds", seeds],
      ["--steps", steps],
      ["--confirm", confirm],
      ["--runs", this.found.runs],
    ];
    const words = options.filter(([, value]) => value !== null).map(([option, value]) => `${option} ${shellWord(String(value))}`);
    fill(this.command, command(`leyden tune ${words.join(" ")}`));
    for (const listener of this.listeners) listener(search.length > 0);
  }

  onChange(listener) {
    this.listeners.push(listener);
    listener(this.#searches().length > 0);
  }

  #searches() {
    const chosen = this.rows.filter((row) => row.check.checked).map((row) => `${row.key}=${row.domain.value.trim()}`);
    const more = this.more.input.value.trim();
    return more ? [...chosen, more] : chosen;
  }

  #keyRow(one, isChosen) {
    const check = element("input", { type: "checkbox", checked: isChosen });
    const label = `Values of ${visible(one.key)}`;
    const domain = element("input", { type: "text", "aria-label": label, value: this.page.query.get(`d.${one.key}`) ?? one.domain });
    check.addEventListener("change", () => {
      const keys = this.rows.filter((row) => row.check.checked).map((row) => row.key);
      this.page.remember({ keys: keys.join(",") === CHOSEN.join(",") ? null : keys.join(",") || "none" });
      this.changed();
    });
    domain.addEventListener("input", () => {
      this.page.remember({ [`d.${one.key}`]: domain.value === one.domain ? null : domain.value });
      this.changed();
    });
    const cost = one.changes_cost ? " Trials with more of them take longer." : "";
    const node = element(
      "div.key-row",
      {},
      element("label.field.check", {}, check, element("span", {}, visible(one.key))),
      domain,
      element("span.note", {}, "own value ", element("code", {}, brief(one.own))),
      element("span.note", {}, `${one.why}.${cost}`),
    );
    return { key: one.key, check, domain, node };
  }

  #field(name, label, value, attributes = {}) {
    const input = element("input", { type: "text", value: this.page.query.get(name) ?? value, ...attributes });
    input.addEventListener("input", () => {
      this.page.remember({ [name]: input.value === String(value) ? null : input.value });
      this.changed();
    });
    return { input, node: element("label.field", {}, element("span", {}, label), input) };
  }
}

function offerStart(page, form, target) {
  const trouble = element("div");
  const shown = element("div.stack");
  const button = element("button", { type: "button" }, "Start the search");
  const note = element("span.note");
  form.onChange((hasKeys) => {
    button.disabled = !hasKeys;
    note.textContent = hasKeys ? "It runs on as a process of its own when the console ends." : "Choose at least one key.";
  });
  button.addEventListener("click", async () => {
    fill(trouble);
    button.disabled = true;
    try {
      showJob(await post(["tuning"], form.body(), page.signal));
    } catch (error) {
      if (!page.signal.aborted) fill(trouble, problem(error.message, null));
    }
    button.disabled = false;
  });
  const showJob = (job) => {
    const study = element("p", { hidden: true });
    const ended = new AbortController();
    fill(shown, study, jobPanel(job, page.signal, { onEnd: () => ended.abort() }));
    showStudy(page, job, study, ended.signal);
  };
  target.append(element("div.bar", {}, button, note), trouble, shown);
  get(["jobs"], { signal: page.signal })
    .then((jobs) => jobs.find((job) => job.kind === "tune" && job.subject.run === page.parameters.key))
    .then((job) => job && !shown.hasChildNodes() && showJob(job))
    .catch(() => null);
}

/** Shows a link to the study of a search as soon as it is there; looks for it until the search has ended. */
async function showStudy(page, job, target, ended) {
  for (let isLast = false; !isLast && !page.signal.aborted; ) {
    isLast = ended.aborted;
    const found = await get(["studies"], { signal: page.signal }).catch(() => null);
    const study = found?.studies.find((one) => one.folder === job.subject.folder);
    if (study) {
      fill(target, element("a", { href: link(["studies", study.key]) }, `Open the study ${visible(study.name)}`));
      target.hidden = false;
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, LOOK_AGAIN));
  }
}
