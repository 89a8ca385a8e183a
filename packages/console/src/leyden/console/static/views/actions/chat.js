/**
 * Chat with a version of a run, or with two that answer the same messages side by side.
 * @module
 */

import { actionsAllowed, get, postLines } from "../../api.js";
import { keep, messagesFor, newAnswer, newConversation, restore } from "../../conversation.js";
import { element, fill } from "../../dom.js";
import { AnswerView } from "../../elements/answer.js";
import { choice, command, empty, fold, load, longText, panel, problem } from "../../elements/page.js";
import { number, shellWord } from "../../format.js";
import { inTheFolder, nothingOf, runFrame } from "../run_frame.js";

const INTERRUPTED = "The answer broke off before its end.";

/** @param {import("../../app.js").Page} page */
export async function show(page) {
  runFrame(page, "chat", [["Chat", null]], async (run, body) => {
    if (run.folder === null)
      return body.append(inTheFolder(run, "The weights of its versions are"));
    const versions = run.versions.filter((one) => one.has_weights || one.version === 0).reverse();
    if (!versions.length)
      return body.append(nothingOf(run, "This run has no version", "Each step of a run makes one:"));
    const kept = versions.find((one) => one.kept) ?? versions[0];
    const where = run.folder.slice(0, -run.folder.split("/").pop().length - 1) || "/";
    const folder = run.folder.split("/").pop();
    const serve = `leyden models serve ${shellWord(`${folder}:${kept.version}`)} --runs ${shellWord(where)}`;
    if (!(await actionsAllowed())) {
      body.append(
        empty("Pages can serve a version and chat with it if the console is started so:", "leyden console --allow-actions"),
        panel("The same in a terminal, for any client of OpenAI", command(serve)),
      );
      return;
    }
    const target = element("div.stack");
    body.append(target);
    const request = () => get(["runs", run.key, "chat"], { signal: page.signal });
    load(target, page.signal, request, ({ policies }) => {
      if (!policies.length)
        return target.append(
          empty("This run trained no policy: an endpoint answered its agent, and that can be called without Leyden."),
        );
      const chat = new Chat(page, run, versions, policies, kept.version);
      target.append(...chat.nodes(serve));
      chat.draw();
    });
  });
}

class Chat {
  /**
   * @param {import("../../app.js").Page} page
   * @param {any} run
   * @param {any[]} versions that can be served, the newest first
   * @param {string[]} policies
   * @param {number} kept
   */
  constructor(page, run, versions, policies, kept) {
    Object.assign(this, { page, run, policies });
    const known = new Set(versions.map((one) => String(one.version)));
    const given = (name, fallback) => (known.has(page.query.get(name) ?? "") ? page.query.get(name) : fallback);
    this.version = given("version", String(kept));
    this.beside = given("beside", "");
    this.policy = policies.includes(page.query.get("policy")) ? page.query.get("policy") : policies[0];
    this.conversation = restore(sessionStorage, run.key);
    this.options = versions.map((one) => [
      String(one.version),
      `version ${number(one.version)}${one.kept ? ", kept" : ""}${one.version === 0 ? ", before training" : ""}`,
    ]);
    /** @type {AbortController | null} */
    this.answering = null;
    /** @type {number | null} the turn that the next message replaces */
    this.editing = null;
    this.turns = element("div.stack");
    this.trouble = element("div.trouble");
    page.signal.addEventListener("abort", () => this.#stop(), { once: true });
    window.addEventListener("pagehide", () => this.#keep(), { signal: page.signal });
  }

  /** @param {string} serve the command that serves the kept version */
  nodes(serve) {
    const { page, conversation: kept } = this;
    this.choices = element(
      "div.bar",
      {},
      choice("Version", this.options, this.version, (value) => this.#choose({ version: value })),
      choice("Beside it", [["", "no other version"], ...this.options], this.beside, (value) =>
        this.#choose({ beside: value }),
      ),
      this.policies.length > 1 &&
        choice(
          "Policy",
          this.policies.map((name) => [name, name]),
          this.policy,
          (value) => this.#choose({ policy: value }),
        ),
    );
    this.system = element("textarea", { rows: "3", value: kept.system, onchange: () => this.#settings() });
    this.temperature = numberField({ min: 0, max: 2, step: 0.1, value: kept.temperature }, () => this.#settings());
    this.topP = numberField({ min: 0.01, max: 1, step: 0.01, value: kept.topP }, () => this.#settings());
    this.most = numberField({ min: 1, step: 1, value: kept.most ?? "" }, () => this.#settings());
    const settings = (body) =>
      body.append(
        labelled("System message", this.system),
        element(
          "div.bar",
          {},
          labelled("Temperature", this.temperature),
          labelled("Top-p", this.topP),
          labelled("Most tokens", this.most),
        ),
        element("p.note", {}, "Without a number of tokens, an answer may be as long as the version's context."),
      );
    this.message = element("textarea", { rows: "3", value: kept.draft, "aria-describedby": "chat-keys" });
    this.message.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#submit();
    });
    this.message.addEventListener("input", () => {
      kept.draft = this.message.value;
      this.#keep();
    });
    this.sendButton = element("button", { type: "button", onclick: () => this.#submit() }, "Send");
    this.stopButton = element("button", { type: "button", hidden: true, onclick: () => this.#stop() }, "Stop");
    this.cancelButton = element("button.plain", { type: "button", hidden: true, onclick: () => this.#edit(null) }, "Cancel");
    this.clearButton = element("button.plain", { type: "button", onclick: () => this.#clear() }, "Clear");
    const composer = element(
      "section.stack",
      { "aria-label": "New message" },
      labelled("Message", this.message),
      element(
        "div.bar",
        {},
        this.sendButton,
        this.stopButton,
        this.cancelButton,
        this.clearButton,
        element("span.note", { id: "chat-keys" }, "Enter sends, Shift+Enter begins a line."),
      ),
      this.trouble,
    );
    const about = (body) =>
      body.append(
        element(
          "p",
          {},
          "A version is loaded with the first message to it. At most two are served at a time, and each ends after ten minutes without a message. No message is recorded: the conversation is in this tab only, and is gone when the tab is closed. A version gets the earlier messages that it has answered itself.",
        ),
        element("p", {}, "To serve it to other programs:"),
        command(serve),
      );
    return [
      this.choices,
      fold("Sampling and system message", settings, Boolean(kept.system)),
      this.turns,
      composer,
      fold("How this works", about),
    ];
  }

  /** Draws the conversation as it is. */
  draw() {
    fill(
      this.turns,
      this.conversation.turns.map((_, index) => this.#turn(index)),
    );
    this.clearButton.hidden = !this.conversation.turns.length;
  }

  get #shown() {
    return [...new Set([this.version, this.beside].filter(Boolean))];
  }

  #id(version) {
    return this.policies.length > 1 ? `${version} ${this.policy}` : version;
  }

  #choose(changes) {
    Object.assign(this, changes);
    const { version, beside, policy } = this;
    this.page.remember({ version, beside, policy: this.policies.length > 1 ? policy : null });
    this.draw();
  }

  #turn(index) {
    const turn = this.conversation.turns[index];
    const answers = element("div.answers");
    for (const version of this.#shown) {
      const answer = turn.answers[this.#id(version)];
      if (!answer) {
        answers.append(
          element(
            "section.message",
            { "aria-label": this.#title(version) },
            element("h3", {}, this.#title(version)),
            element("p.note", {}, "It was not sent this message."),
          ),
        );
        continue;
      }
      const view = new AnswerView(this.#title(version), this.page.signal);
      view.end(answer);
      answers.append(view.node);
    }
    const name = `message ${number(index + 1)}`;
    return element(
      "section.panel.stack",
      { "aria-label": `Message ${number(index + 1)}` },
      element(
        "div.bar",
        {},
        element("h2", {}, "You"),
        element("button.plain", { type: "button", "aria-label": `Edit: ${name}`, onclick: () => this.#edit(index) }, "Edit"),
        element(
          "button.plain",
          { type: "button", "aria-label": `Send again: ${name}`, onclick: () => this.#send(turn.text, index) },
          "Send again",
        ),
      ),
      longText(turn.text, { name }),
      answers,
    );
  }

  #title(version) {
    const policy = this.policies.length > 1 ? `, ${this.policy}` : "";
    return `Version ${number(Number(version))}${policy}`;
  }

  #edit(index) {
    this.editing = index;
    this.cancelButton.hidden = index === null;
    this.sendButton.textContent = index === null ? "Send" : `Replace message ${number(index + 1)} and what follows`;
    this.message.value = index === null ? this.conversation.draft : this.conversation.turns[index].text;
    this.message.focus();
  }

  #clear() {
    this.#stop();
    const { system, temperature, topP, most } = this.conversation;
    Object.assign(this.conversation, newConversation(), { system, temperature, topP, most });
    this.#edit(null);
    this.#keep();
    this.draw();
  }

  #settings() {
    const { conversation } = this;
    conversation.system = this.system.value;
    for (const [name, field] of /** @type {const} */ ([
      ["temperature", this.temperature],
      ["topP", this.topP],
      ["most", this.most],
    ]))
      if (field.checkValidity() && (name === "most" || field.value !== ""))
        conversation[name] = field.value === "" ? null : Number(field.value);
    this.#keep();
  }

  #submit() {
    const text = this.message.value;
    if (!text.trim() || this.answering) return;
    const wrong = [this.temperature, this.topP, this.most].find((field) => !field.checkValidity());
    if (wrong) {
      const details = wrong.closest("details");
      if (details) details.open = true;
      wrong.reportValidity();
      return;
    }
    const index = this.editing ?? this.conversation.turns.length;
    this.#edit(null);
    this.message.value = this.conversation.draft = "";
    this.#send(text, index);
  }

  /** Sends a message as turn `index`; later turns are left out from then on. */
  async #send(text, index) {
    if (this.answering) return;
    this.#settings();
    fill(this.trouble);
    const { conversation } = this;
    const answers = {};
    conversation.turns.splice(index, Infinity, { text, answers });
    this.draw();
    const leaving = (this.answering = new AbortController());
    this.#busy(true);
    const place = this.turns.lastElementChild.querySelector(".answers");
    fill(place);
    await Promise.all(this.#shown.map((version) => this.#answer(index, version, place, answers, leaving.signal)));
    this.answering = null;
    this.#busy(false);
    this.#keep();
    if (!this.page.signal.aborted) this.page.say("The answer is complete.");
  }

  async #answer(index, version, place, answers, signal) {
    const { conversation } = this;
    const messages = messagesFor(conversation, index, this.#id(version));
    const answer = (answers[this.#id(version)] = { ...newAnswer(), error: INTERRUPTED });
    this.#keep();
    const view = new AnswerView(this.#title(version), this.page.signal);
    place.append(view.node);
    const body = {
      version: Number(version),
      policy: this.policies.length > 1 ? this.policy : null,
      messages,
      temperature: conversation.temperature,
      top_p: conversation.topP,
      max_tokens: conversation.most,
    };
    const take = (line) => {
      if (line.state) view.wait(line.state, line.job);
      else if (line.error) answer.error = line.error;
      else if (line.end) Object.assign(answer, { end: line.end, error: null });
      else {
        answer.text += line.text;
        answer.reasoning += line.reasoning;
        answer.tokens.push(...line.tokens);
        view.grow(answer);
      }
    };
    try {
      await postLines(["runs", this.run.key, "chat"], body, signal, take);
    } catch (error) {
      if (!signal.aborted && error.status === undefined) console.error(error);
      answer.error = signal.aborted ? "You stopped this answer." : error.message;
    }
    view.end(answer);
  }

  #stop() {
    this.answering?.abort();
  }

  #busy(isBusy) {
    this.sendButton.disabled = this.clearButton.disabled = isBusy;
    this.stopButton.hidden = !isBusy;
    this.clearButton.hidden = !this.conversation.turns.length;
    for (const select of this.choices.querySelectorAll("select")) select.disabled = isBusy;
    for (const button of this.turns.querySelectorAll("button.plain")) button.disabled = isBusy;
  }

  #keep() {
    if (keep(sessionStorage, this.run.key, this.conversation)) return;
    fill(this.trouble, problem("The conversation is too long for this tab's memory: tokens of its answers were not kept.", null));
  }
}

function labelled(label, field) {
  return element("label.field", {}, element("span", {}, label), field);
}

function numberField(attributes, onChange) {
  return element("input", { type: "number", ...attributes, onchange: onChange });
}
