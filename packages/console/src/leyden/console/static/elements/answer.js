/**
 * An answer of a version while it is written and afterwards: its text, its numbers, and its tokens on demand.
 * @module
 */

import { tokenCounts } from "../conversation.js";
import { element, fill, setText } from "../dom.js";
import { counted, duration, exact, number, percent, visible } from "../format.js";
import { lowToHigh } from "../quantiles.js";
import { link } from "../router.js";
import { fold, longText, problem } from "./page.js";
import { TokenStrip } from "./tokens.js";

const FINISHES = { length: "cut off at the most tokens", stop: "" };

export class AnswerView {
  /**
   * @param {string} title
   * @param {AbortSignal} signal
   */
  constructor(title, signal) {
    this.signal = signal;
    this.title = title;
    this.text = element("pre.text", { dir: "auto", tabindex: "0", role: "group", "aria-label": `Answer of ${title}` });
    this.about = element("p.note");
    this.rest = element("div.stack");
    this.node = element(
      "section.message",
      { "aria-label": title },
      element("h3", {}, title),
      this.text,
      this.about,
      this.rest,
    );
  }

  /**
   * Shows what is under way.
   * @param {"loading" | "answering"} state
   * @param {string} job that serves the version
   */
  wait(state, job) {
    const what = state === "loading" ? "The version is being loaded: " : "Answering: ";
    fill(this.about, what, element("a", { href: link(["jobs", job]) }, `job ${visible(job)}`));
  }

  /** @param {import("../conversation.js").Answer} answer of which more has come */
  grow(answer) {
    setText(this.text, visible(answer.text));
  }

  /** @param {import("../conversation.js").Answer} answer that has ended */
  end(answer) {
    const text = answer.text
      ? longText(answer.text, { name: `Answer of ${this.title}` })
      : element("p.note", {}, answer.error ? "No text." : "The answer has no text.");
    this.text.replaceWith(text);
    this.text = text;
    setText(this.about, numbers(answer));
    const { all, shown } = tokenCounts(answer);
    const title = all === shown ? `Tokens (${number(all)})` : `Tokens (${number(all)}, ${number(shown)} with text)`;
    fill(
      this.rest,
      answer.error && problem(answer.error, null),
      answer.reasoning && fold("Reasoning", (body) => body.append(longText(answer.reasoning, { name: "reasoning" }))),
      answer.tokens.length > 0 &&
        fold(title, (body) => body.append(...strip(answer, this.signal))),
    );
  }
}

/** @param {import("../conversation.js").Answer} answer */
function numbers({ end }) {
  if (!end) return "";
  const rate = end.seconds > 0 && end.tokens ? `${counted(Math.round(end.tokens / end.seconds), "token")} a second` : "";
  return [
    counted(end.tokens, "token"),
    `prompt ${counted(end.prompt_tokens, "token")}`,
    duration(end.seconds),
    rate,
    FINISHES[end.finish] ?? visible(end.finish),
  ]
    .filter(Boolean)
    .join(" · ");
}

/**
 * The tokens of an answer, coloured by their log-probability.
 * @param {import("../conversation.js").Answer} answer
 * @param {AbortSignal} signal
 */
function strip(answer, signal) {
  const { tokens } = answer;
  const { all, shown: withText } = tokenCounts(answer);
  const values = tokens.map(([, logprob]) => logprob);
  const scale = lowToHigh(values);
  const describe = (index) => {
    const [text, logprob] = tokens[index];
    const of = `Token ${number(index + 1)} of ${number(all)}`;
    return `${of}: “${visible(text)}”, log-probability ${exact(logprob)}, probability ${percent(Math.exp(logprob))}.`;
  };
  const chosen = element(
    "p.note",
    { "aria-live": "polite" },
    "Log-probabilities are those at temperature 1 and top-p 1, whatever the settings were.",
    all === withText + 1 && " The token that ends the answer counts, and is not shown: it has no text.",
    all > withText + 1 && ` ${counted(all - withText, "token")}, among them the one that ends the answer, are not shown.`,
    " Choose a token to see its own.",
  );
  const shown = new TokenStrip(
    "Tokens of the answer",
    tokens.map(([text]) => text),
    { signal, onSelect: (index) => setText(chosen, describe(index)) },
  );
  shown.colour(values.map((value) => scale.classOf(value) ?? ""));
  const range = (one) => (one.from === one.to ? exact(one.from) : `${exact(one.from)} to ${exact(one.to)}`);
  const legend = scale.legend.map((one) => element(`span.${one.name}`, {}, range(one)));
  return [element("div.quantiles", {}, "Log-probability ", legend), shown.node, chosen];
}
