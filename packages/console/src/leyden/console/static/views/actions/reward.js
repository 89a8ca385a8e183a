/**
 * The reward debugger: the reward of a run as a text to edit, and what an edited or another reward would change.
 * @module
 */

import { actionsAllowed, get, post } from "../../api.js";
import { element, fill, setText } from "../../dom.js";
import { draft, keepDraft } from "../../drafts.js";
import { diff } from "../../elements/diff.js";
import { Editor } from "../../elements/editor.js";
import { jobPanel } from "../../elements/job.js";
import {
  choice,
  command,
  empty,
  facts,
  fold,
  load,
  panel,
  problem,
  setOptions,
  smallTable,
  stateBadge,
} from "../../elements/page.js";
import { moment, number, shellWord, visible } from "../../format.js";
import { link } from "../../router.js";
import { rewardResult } from "./reward_result.js";
import { inTheFolder, runFrame } from "../run_frame.js";

const NEW_FILE = "reward.py";
const TEMPLATE = `"""A reward for the stored rollouts."""


def score(task, result):
    """Return a number, or a dict of dimensions. \`result\` is what the agent returned."""
    return 0.0
`;
/** Value of the choice of a file that stands for a reward that is named and not shown. */
const NAMED = "?";

const ROLLOUTS = [
  ["train", "training"],
  ["held-out", "held-out"],
  ["all", "all"],
];

/** @param {import("../../app.js").Page} page */
export async function show(page) {
  const { key } = page.parameters;
  runFrame(page, "reward", [["Reward", null]], (run, body) => {
    const target = element("div.stack");
    body.append(target);
    if (run.folder === null)
      return target.append(inTheFolder(run, "The run's reward is"));
    const request = async () => {
      const file = page.query.get("file") ?? "";
      const isAllowed = await actionsAllowed();
      const own = get(["runs", key, "reward"], { query: { file: isAllowed ? file : "" }, signal: page.signal });
      return { isAllowed, source: await own };
    };
    load(target, page.signal, request, ({ isAllowed, source }) => {
      if (isAllowed) new RewardPage(page, run, target, source);
      else readOnly(target, source);
    });
  });
}

function readOnly(target, source) {
  const parts = [];
  if (source.own === null)
    parts.push(element("p", {}, "This run has no reward function: its agent returned or emitted the rewards."));
  else parts.push(...ownReward(source));
  if (source.text) {
    const editor = new Editor(visible(source.source), { readOnly: true });
    editor.show(source.text);
    parts.push(editor.node);
  }
  target.append(
    panel("The run's reward", ...parts),
    empty(
      "This console only reads. It scores the stored rollouts with a reward that you edit or name if it is started so:",
      "leyden console --allow-actions",
    ),
    panel(
      "The same in a shell",
      element("p", {}, "Copy the file, edit the copy, and name it in the place of the run's own reward:"),
      command(source.command),
    ),
  );
}

function ownReward(source) {
  const weights = Object.entries(source.weights).map(([name, weight]) => `${name} = ${number(weight)}`);
  const known = [["Function", visible(source.own)]];
  if (weights.length) known.push(["Weights", visible(weights.join(", "))]);
  return [facts(known), source.problem && problem(source.problem, null)];
}

class RewardPage {
  constructor(page, run, target, source) {
    this.page = page;
    this.run = run;
    this.own = source;
    this.watching = new AbortController();
    this.editor = new Editor("Text of the reward", { onInput: () => this.#edited(), onSubmit: () => this.#score() });
    this.editing = element("div.stack");
    this.state = element("span.note", { role: "status" });
    this.discard = element("button.plain", { type: "button", onclick: () => this.#discard() }, "Discard the changes");
    this.difference = element("div");
    this.trouble = element("div");
    this.earlier = element("div");
    this.job = element("div.stack");
    this.result = element("div.stack");
    this.options = this.#optionFields(source);
    this.#makeFields(source);
    target.append(this.#editPanel(source), this.earlier, this.job, this.result);
    this.#showSource(source, page.query.get("function"));
    if (page.query.get("name")) this.#choose(NAMED);
    const job = page.query.get("job");
    if (job) this.#reopen(job);
    this.#listEarlier(job);
  }

  // --- What is scored

  #makeFields(source) {
    const { page } = this;
    this.file = choice("File", [], "", (value) => this.#choose(value));
    this.select = this.file.querySelector("select");
    this.functions = element("datalist", { id: "reward-functions" });
    this.function = field("Function", { list: "reward-functions", spellcheck: "false" });
    this.function.input.addEventListener("input", () => page.remember({ function: this.function.input.value }));
    this.name = field("Import string", { placeholder: "package.module:function", spellcheck: "false" });
    this.name.input.value = page.query.get("name") ?? "";
    this.name.input.addEventListener("input", () => page.remember({ name: this.name.input.value }));
    this.name.node.hidden = true;
    this.path = field("New file", { spellcheck: "false" });
    this.#renewFiles(source);
  }

  #renewFiles(source) {
    const files = source.files.map((one) => [one.source, one.source.split("/").pop()]);
    if (files.length) files[0][1] += " (the run's own)";
    if (source.own === null || source.problem) files.splice(0, 1, ["", "a new text"]);
    setOptions(this.select, [...files, [NAMED, "another, by its import string"]], source.source);
  }

  #editPanel(source) {
    const run = element("button.primary", { type: "button", onclick: () => this.#score() }, "Score the rollouts");
    const save = element("button", { type: "button", onclick: () => this.#save() }, "Save as this file");
    this.saved = element("div.stack", { role: "status" });
    this.editing.append(
      this.editor.node,
      element("div.bar", {}, this.state, this.discard),
      this.difference,
      fold("Save as a file", (body) =>
        body.append(
          element("p.note", {}, "The file must not exist yet. It is below the console's folder, or beside the reward."),
          element("div.bar", {}, this.path.node, save),
        ),
      ),
    );
    const own =
      source.own === null
        ? element("p.note", {}, "This run has no reward function: its agent returned or emitted the rewards.")
        : source.problem && problem(source.problem, null);
    return panel(
      "Reward",
      own,
      element("div.bar", {}, this.file, this.function.node, this.name.node, this.functions),
      this.editing,
      this.saved,
      element("div.bar", {}, this.options.nodes, run),
      this.trouble,
    );
  }

  #optionFields(source) {
    const { page } = this;
    const remembered = (name, otherwise) => page.query.get(name) ?? otherwise;
    const weights = Object.entries(source.weights).map(([name, weight]) => `${name}=${weight}`);
    const rollouts = choice("Rollouts", ROLLOUTS, remembered("rollouts", "train"), (value) =>
      page.remember({ rollouts: value === "train" ? null : value }),
    );
    const limit = field("Rollouts at most", { type: "number", min: 1, placeholder: "all" });
    const timeout = field("Seconds per rollout", { type: "number", min: 0, step: "any" });
    const weight = field("Weights", { placeholder: "right=1, short=0.5", spellcheck: "false" });
    limit.input.value = remembered("limit", "");
    timeout.input.value = remembered("timeout", "30");
    weight.input.value = remembered("weights", weights.join(", "));
    const keep = (one, name) => one.input.addEventListener("change", () => page.remember({ [name]: one.input.value }));
    keep(limit, "limit");
    keep(timeout, "timeout");
    keep(weight, "weights");
    return {
      nodes: [rollouts, limit.node, timeout.node, weight.node],
      read: () => ({
        rollouts: rollouts.querySelector("select").value,
        limit: limit.input.value === "" ? null : Number(limit.input.value),
        timeout: Number(timeout.input.value),
        weights: weight.input.value.split(/[\s,]+/).filter(Boolean),
      }),
    };
  }

  #showSource(source, named = null) {
    this.source = source;
    const isNew = source.text === "";
    this.original = isNew ? "" : source.text;
    this.place = source.source && !source.problem ? source.source : NEW_FILE;
    this.function.input.value = named || source.function || "score";
    this.select.value = source.problem || isNew ? "" : source.source;
    this.path.input.value = isNew ? NEW_FILE : source.source.endsWith(".py") ? source.source.replace(/\.py$/, "_2.py") : NEW_FILE;
    this.editor.rename(`Text of ${visible(this.place)}`);
    this.editor.show(draft(this.run.key, this.place) ?? (isNew ? TEMPLATE : source.text));
    this.#drawState();
  }

  async #choose(value) {
    const isNamed = value === NAMED;
    this.select.value = value;
    this.editing.hidden = isNamed;
    this.function.node.hidden = isNamed;
    this.name.node.hidden = !isNamed;
    fill(this.trouble);
    if (isNamed) return;
    const isOwn = value === this.own.source;
    this.page.remember({ file: isOwn ? null : value, function: null, name: null });
    try {
      this.#showSource(await this.#read(value));
    } catch (error) {
      this.#report(error);
    }
  }

  // --- The text

  #edited() {
    const isKept = keepDraft(this.run.key, this.place, this.#isEdited() ? this.editor.text : null);
    this.#drawState(isKept);
  }

  #isEdited() {
    return this.editor.text !== this.original;
  }

  #drawState(isKept = true) {
    const { text } = this.editor;
    const edited = this.#isEdited();
    const hidden = visible(text) === text ? "" : " It has characters that cannot be seen.";
    const kept = isKept ? "The changes are kept in this tab of the browser." : "The browser does not keep the changes.";
    setText(this.state, (edited ? (this.original ? kept : "A new text.") : "As in the file.") + hidden);
    this.discard.hidden = !edited || !this.original;
    fill(this.difference, edited && this.original && fold("Changes", (body) => body.append(diff(this.original, this.editor.text))));
    const names = [...text.matchAll(/^(?:async )?def ([A-Za-z]\w*)/gm)].map((one) => one[1]);
    fill(
      this.functions,
      [...new Set(names)].map((name) => element("option", { value: name })),
    );
  }

  #discard() {
    keepDraft(this.run.key, this.place, null);
    this.editor.show(this.original);
    this.#drawState();
  }

  // --- Scoring

  #reward() {
    const isNamed = this.select.value === NAMED;
    const reward = isNamed ? this.name.input.value.trim() : `${this.place}:${this.function.input.value.trim()}`;
    return !isNamed && this.#isEdited() ? { reward, text: this.editor.text } : { reward };
  }

  async #score() {
    fill(this.trouble);
    try {
      if (await this.#isOutdated()) return;
      const body = { ...this.#reward(), ...this.options.read() };
      const job = await post(["runs", this.run.key, "rescore"], body, this.page.signal);
      fill(this.result);
      this.page.remember({ job: job.id });
      this.#follow(job);
      this.job.scrollIntoView({ block: "nearest" });
    } catch (error) {
      this.#report(error);
    }
  }

  /** Whether the file has changed since the page has read it; then shows its text. */
  async #isOutdated() {
    if (this.select.value === NAMED || this.#isEdited()) return false;
    const now = await this.#read(this.source.source);
    if (now.text === this.original) return false;
    this.#showSource(now, this.function.input.value);
    fill(this.trouble, element("p.notice.warn", {}, "The file has changed. The page now shows its new text."));
    return true;
  }

  #read(file) {
    return get(["runs", this.run.key, "reward"], { query: { file }, signal: this.page.signal });
  }

  /** Links to the results of this run that the console still has. */
  async #listEarlier(shown) {
    const jobs = await get(["jobs"], { signal: this.page.signal }).catch(() => []);
    const own = jobs.filter((job) => job.kind === "rescore" && job.subject.run === this.run.key && job.id !== shown);
    if (!own.length || this.page.signal.aborted) return;
    const rows = own.map((job) => [
      element("a", { href: link(["runs", this.run.key, "reward"], { job: job.id }) }, visible(job.title)),
      stateBadge(job.state),
      moment(job.created),
    ]);
    const table = () => smallTable("Earlier scorings of this run", ["Reward", "State", "Started"], rows);
    fill(this.earlier, fold(`Earlier scorings of this run (${number(own.length)})`, (body) => body.append(table())));
  }

  async #reopen(id) {
    try {
      const job = await get(["jobs", id], { signal: this.page.signal });
      if (job.kind === "rescore" && job.subject.run === this.run.key) return this.#follow(job);
      throw new Error(`Job ${id} is no scoring of this run.`);
    } catch (error) {
      if (this.page.signal.aborted) return;
      const reason = error.status === 404 ? `The console no longer has the result of job ${id}.` : error.message;
      fill(this.job, element("p.notice.warn", {}, visible(reason), " Score the rollouts again."));
    }
  }

  #follow(job) {
    this.watching.abort();
    this.watching = new AbortController();
    const signal = AbortSignal.any([this.page.signal, this.watching.signal]);
    const onEnd = (ended) => {
      this.page.say(`The scoring is ${ended.state}.`);
      if (ended.state === "finished") this.#showResult(ended, signal);
    };
    fill(this.job, jobPanel(job, signal, { onEnd }));
  }

  #showResult(job, signal) {
    const page = { ...this.page, signal };
    const request = () => get(["jobs", job.id, "rescored"], { signal });
    const { result } = this;
    load(result, signal, request, (found) => {
      result.append(
        element("h2", {}, `Result: ${visible(found.reward)}${found.text === null ? "" : ", edited"}`),
        ...this.#scoredText(found),
        ...rewardResult(this.run.key, found, page),
      );
    });
  }

  /** The text in the editor may no longer be the one that was scored. */
  #scoredText(found) {
    if (found.text === null || found.text === this.editor.text) return [];
    const again = () => {
      this.editor.show(found.text);
      this.#edited();
      this.editor.field.focus();
    };
    const button = element("button.plain", { type: "button", onclick: again }, "Put it into the editor");
    return [
      element("p.notice", {}, "This text was scored, which is another than in the editor:", button),
      fold("The scored text", (body) => body.append(diff(this.editor.text, found.text))),
    ];
  }

  // --- Saving

  async #save() {
    fill(this.saved);
    try {
      const body = { path: this.path.input.value, text: this.editor.text };
      const { source } = await post(["runs", this.run.key, "reward", "save"], body, this.page.signal);
      const reward = `${source}:${this.function.input.value.trim()}`;
      const renewed = await this.#read("");
      this.#renewFiles(renewed);
      fill(
        this.saved,
        element("p.notice", {}, `Saved as ${visible(source)}. A run has this reward with the option:`),
        command(`--reward ${shellWord(reward)}`),
        element("p", {}, element("a", { href: link(["runs", this.run.key, "launch"]) }, "New run like this one, in which it can be named")),
      );
      keepDraft(this.run.key, this.place, null);
      this.name.input.value = reward;
      if (renewed.files.some((one) => one.source === source)) await this.#choose(source);
      else await this.#choose(NAMED);
      this.function.input.value = reward.slice(source.length + 1);
    } catch (error) {
      this.#report(error, this.saved);
    }
  }

  #report(error, place = this.trouble) {
    if (this.page.signal.aborted) return;
    if (error.status === undefined) console.error(error);
    const line = /not Python: line (\d+)/.exec(error.message)?.[1];
    const show = line && element("button", { type: "button", onclick: () => this.editor.goTo(Number(line)) }, `Go to line ${line}`);
    const shown = problem(error.message, null);
    if (show) shown.append(show);
    fill(place, shown);
  }
}

/** A labelled field of text or a number. */
function field(label, attributes) {
  const input = element("input", { type: "text", autocomplete: "off", ...attributes });
  return { input, node: element("label.field", {}, element("span", {}, label), input) };
}
