/**
 * One model call: its messages, and each token with what was known of it when it was sampled and when it was trained.
 * @module
 */

import { get } from "../api.js";
import { element, fill } from "../dom.js";
import { messageList } from "../elements/messages.js";
import { badge, choice, facts, fold, load, longText, panel } from "../elements/page.js";
import { spanDetails } from "../elements/span.js";
import { TokenStrip } from "../elements/tokens.js";
import { counted, exact, number, plain, signed, tokenText, visible } from "../format.js";
import { isMasked, legendTexts, measures, scaleOf, sum, usualMeasure } from "../measures.js";
import { link } from "../router.js";
import { runFrame } from "./run_frame.js";

/** @param {import("../app.js").Page} page */
export async function show(page) {
  const { key, rollout, span } = page.parameters;
  const attempt = page.query.get("attempt");
  const crumbs = [
    ["Rollouts", link(["runs", key, "rollouts"])],
    [rollout, link(["runs", key, "rollouts", rollout], { attempt, span })],
    ["Call", null],
  ];
  runFrame(page, "rollouts", crumbs, (_, body) => {
    const target = element("div.stack");
    body.append(target);
    const request = () =>
      get(["runs", key, "rollouts", rollout, "calls", span], { query: { attempt }, signal: page.signal });
    load(target, page.signal, request, (call) => new CallPage(page, target, call));
  });
}

class CallPage {
  constructor(page, target, call) {
    this.page = page;
    this.call = call;
    this.trained = call.trained[Number(page.query.get("update") ?? 0)] ?? call.trained[0] ?? null;
    this.measures = measures(call.response, this.trained);
    this.coloured = this.#wanted(page.query.get("colour"));
    this.selected = Number(page.query.get("token") ?? 0);
    this.legend = element("div.quantiles");
    this.details = element("section.panel", { "aria-label": "The chosen token", "aria-live": "polite" });
    this.loss = element("section.panel", { "aria-label": "Loss" });
    target.append(...this.#tokens(), this.loss, ...this.#rest());
    this.#drawLoss();
    this.#colour();
    this.#select(this.selected);
  }

  /** The measure that the address names, or the usual one; "" for none. */
  #wanted(key) {
    if (key === "none") return "";
    return this.measures.some((one) => one.key === key) ? key : usualMeasure(this.measures);
  }

  #tokens() {
    const { call, page } = this;
    if (!call.response.ids.length) return [element("p.notice", {}, "The tokens of this call were not recorded.")];
    this.strip = new TokenStrip("Tokens of the response", textsOf(call.response), {
      signal: page.signal,
      onSelect: (index) => this.#select(index),
      onPoint: (index) => this.#drawToken(index ?? this.selected),
    });
    const colours = [["", "nothing"], ...this.measures.map((one) => [one.key, one.title])];
    const colour = choice("Colour by", colours, this.coloured, (key) => {
      this.coloured = key;
      page.remember({ colour: key || "none" });
      this.#colour();
    });
    const response = panel(
      `Response, ${counted(call.response.ids.length, "token")}`,
      call.vocabulary && element("p.note", {}, visible(call.vocabulary)),
      element("div.bar", {}, this.#updates(), colour, this.legend),
      this.strip.node,
    );
    return [element("div.columns.tokens-and-details", {}, response, this.details)];
  }

  /** A choice among the updates that learned from the call, if there are several. */
  #updates() {
    const { trained } = this.call;
    if (trained.length < 2) return null;
    const name = (one) => [`step ${one.step}`, one.policy, one.side].filter(Boolean).join(", ");
    return choice(
      "Trained in",
      trained.map((one, index) => [String(index), name(one)]),
      String(trained.indexOf(this.trained)),
      (value) => {
        this.trained = trained[Number(value)];
        this.page.remember({ update: value });
        this.measures = measures(this.call.response, this.trained);
        this.#colour();
        this.#drawToken(this.selected);
        this.#drawLoss();
      },
    );
  }

  #colour() {
    if (!this.strip) return;
    const { ids, allowed } = this.call.response;
    const one = this.measures.find((measure) => measure.key === this.coloured);
    const scale = one && scaleOf(one);
    const classes = ids.map((_, index) => {
      const masked = this.trained && isMasked(this.trained, index) ? "masked" : "";
      const constrained = (allowed?.[index] ?? null) !== null ? "constrained" : "";
      return [scale?.classOf(one.values[index]), masked, constrained].filter(Boolean).join(" ");
    });
    this.strip.colour(classes);
    const texts = scale ? legendTexts(one, scale) : [];
    fill(
      this.legend,
      (scale?.legend ?? []).map((part, index) => element(`span.${part.name}`, {}, texts[index])),
      classes.some((one) => one.includes("masked")) && element("span.token.masked", {}, "masked: not trained"),
      allowed?.some((value) => value !== null) && element("span.token.constrained", {}, "constrained"),
    );
  }

  #select(index) {
    if (!this.strip || !(index >= 0 && index < this.call.response.ids.length)) return;
    this.selected = index;
    this.strip.select(index);
    this.page.remember({ token: index || null });
    this.#drawToken(index);
  }

  #drawToken(index) {
    const { ids, texts } = this.call.response;
    const values = this.measures.map((one) => [one.title, one.text(one.values[index] ?? null)]);
    const mask = this.trained ? [["Mask", isMasked(this.trained, index) ? "masked: it has no loss" : "trained"]] : [];
    fill(
      this.details,
      element("h2", {}, `Token ${number(index + 1)} of ${number(ids.length)}`),
      element("p", {}, element("code.token.shown", {}, texts[index] === undefined ? "–" : tokenText(texts[index]))),
      facts([["Id", String(ids[index])], ...mask, ...values], "rows"),
    );
  }

  /** The sum of the shown losses beside the logged loss of the step, of which it is a part. */
  #drawLoss() {
    const { trained } = this;
    if (!trained)
      return fill(
        this.loss,
        element("h2", {}, "Loss"),
        element(
          "p",
          {},
          "No update learned from this call",
          this.call.untrained ? `: ${visible(this.call.untrained)}.` : ".",
        ),
      );
    const shown = sum(trained.losses);
    const rest = element("div");
    fill(
      this.loss,
      element("h2", {}, `Loss in step ${number(trained.step)}`),
      element("p", {}, badge(trained.policy), trained.side && badge(trained.side)),
      facts([
        ["Sum of this call's token losses", exact(shown)],
        ["This call's recorded share", exact(trained.share)],
        ["Difference", signed(shown - trained.share)],
        ["Logged loss of the step", exact(trained.loss)],
        ["Optimizer steps", number(trained.optimizer_steps)],
      ]),
      rest,
    );
    const { key } = this.page.parameters;
    load(
      rest,
      this.page.signal,
      () => get(["runs", key, "step", trained.step], { signal: this.page.signal }),
      (step) => {
        const own = step.policies[trained.policy];
        const href = link(["runs", key, "steps", trained.step]);
        if (!own) return rest.append(element("p.note", {}, "The tokens of the step's other calls were not recorded."));
        rest.append(
          facts([
            ["Sum over all calls of the step", exact(own.sum)],
            ["Logged loss of the step", exact(own.loss)],
            ["Difference", own.loss === null ? "–" : signed(own.sum - own.loss)],
          ]),
          element("p", {}, element("a", { href }, "All calls of the step")),
        );
      },
    );
  }

  #rest() {
    const { call, page } = this;
    const prompt = (body) => {
      const strip = new TokenStrip("Tokens of the prompt", textsOf(call.prompt), {
        signal: page.signal,
        base: "prompt",
        onSelect: (index) => fill(chosen, `Token ${number(index + 1)}: id ${call.prompt.ids[index]}`),
      });
      const chosen = element(
        "p.note",
        { "aria-live": "polite" },
        "A token of the prompt has no log-probability, ratio, advantage or loss.",
      );
      body.append(chosen, strip.node);
    };
    const leftOut = call.left_out.length
      ? element("p.notice.warn", {}, `The request asked for more than was used: ${visible(call.left_out.join(", "))}`)
      : null;
    return [
      leftOut,
      panel("Messages", messageList(call.messages)),
      panel("Answer", messageList(call.answer)),
      call.prompt.ids.length > 0 && fold(`Prompt, ${counted(call.prompt.ids.length, "token")}`, prompt),
      call.tools.length > 0 &&
        fold(`Tools (${number(call.tools.length)})`, (body) =>
          body.append(longText(plain(call.tools), { name: "tools" })),
        ),
      fold("Sampling", (body) => body.append(longText(plain(call.sampling), { name: "sampling" }))),
      fold("The call's span", (body) => body.append(...spanDetails(call.span, null))),
    ].filter(Boolean);
  }
}

/** Texts of the tokens; their ids where the vocabulary is missing. */
function textsOf({ ids, texts }) {
  return texts?.length === ids.length ? texts : ids.map((id) => `${id} `);
}
