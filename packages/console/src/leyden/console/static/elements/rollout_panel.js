/**
 * One rollout: its attempts, lanes over time, tree, the chosen span, and the replay.
 * @module
 */

import { element, fill } from "../dom.js";
import { number, visible } from "../format.js";
import { branches, inOrder, lanes, momentOf } from "../spans.js";
import { link } from "../router.js";
import { Lanes } from "./lanes.js";
import { badge, choice, empty } from "./page.js";
import { spanDetails } from "./span.js";
import { Tree } from "./tree.js";

const SPEEDS = [
  ["1", "1 ×"],
  ["4", "4 ×"],
  ["16", "16 ×"],
  ["0.25", "¼ ×"],
];

/**
 * The reward of a rollout, as the answer gives it or as the list of its group does.
 * @param {any} data answer of `/rollouts/{id}`
 * @returns {number | null}
 */
export function rewardOf({ rollout, reward, siblings }) {
  return reward ?? siblings.find((one) => one.id === rollout.id)?.reward ?? null;
}

/**
 * @typedef {object} PanelOptions
 * @property {AbortSignal} signal
 * @property {string} run key of the run
 * @property {string | null} attempt id; null: the last one
 * @property {string | null} span id; null: the first one
 * @property {string | null} [different] id of a span that is marked
 * @property {number} [mark] character of that span's text from which it is marked
 * @property {(changes: {attempt?: string, span?: string}) => void} onChange
 */

export class RolloutPanel {
  /**
   * @param {any} data answer of `/rollouts/{id}`
   * @param {PanelOptions} options
   */
  constructor(data, options) {
    this.data = data;
    this.options = options;
    this.node = element("div.stack");
    this.speed = 1;
    this.frame = 0;
    const wanted = data.attempts.find((one) => one.id === options.attempt);
    options.signal.addEventListener("abort", () => cancelAnimationFrame(this.frame), { once: true });
    if (data.attempts.length) this.#showAttempt(wanted ?? data.attempts[data.attempts.length - 1], options.span);
    else this.node.append(empty("No worker has begun an attempt of this rollout."));
  }

  #showAttempt(attempt, span) {
    this.pause();
    this.attempt = attempt;
    this.order = inOrder(attempt.spans);
    if (!this.order.length) return fill(this.node, this.#attempts(), empty("This attempt has no spans."));
    this.from = Math.min(attempt.started ?? Infinity, this.order[0].start);
    this.to = this.order.reduce((last, one) => Math.max(last, one.end ?? one.start), attempt.ended ?? this.from);
    this.lanes = new Lanes(lanes(attempt.spans, this.from, this.to), this.from, this.to, (id) => this.select(id));
    this.tree = new Tree(
      "Spans",
      branches(attempt.spans, this.options.different),
      (id) => this.select(id),
      (id) => this.#open(id),
    );
    this.details = element("div.stack", { "aria-live": "polite" });
    const of = ` of ${this.options.run} / ${this.data.rollout.id}`;
    fill(
      this.node,
      this.#attempts(),
      element("section.panel", { "aria-label": `Timing${of}` }, this.lanes.node, this.#player()),
      element(
        "div.side",
        {},
        element("section.panel", { "aria-label": `Spans${of}` }, this.tree.node),
        element("section.panel", { "aria-label": `The chosen span${of}` }, this.details),
      ),
    );
    const first = this.order.find((one) => one.id === (span ?? this.options.different)) ?? this.order[0];
    this.select(first.id, false);
  }

  /**
   * Shows a span and moves the replay to its beginning.
   * @param {string} id
   * @param {boolean} [tell] writes it into the address
   */
  select(id, tell = true) {
    const span = this.order.find((one) => one.id === id);
    if (!span) return;
    this.index = this.order.indexOf(span);
    this.now = momentOf(span);
    this.tree.select(id);
    this.lanes.moveTo(this.now);
    const mark = id === this.options.different ? this.options.mark : undefined;
    fill(this.details, spanDetails(span, span.model ? this.#callHref(span) : null, mark));
    if (tell) this.options.onChange({ attempt: this.attempt.id, span: id });
  }

  /** Selects the next or previous span in the order of time. */
  step(by) {
    this.pause();
    const next = this.order[this.index + by];
    if (next) this.select(next.id);
  }

  /** Starts the replay, or pauses it. */
  toggle() {
    if (this.frame) this.pause();
    else this.#play();
  }

  pause() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    if (this.button) this.button.textContent = "Play";
  }

  #play() {
    if (this.index >= this.order.length - 1) this.select(this.order[0].id);
    this.button.textContent = "Pause";
    let last = performance.now();
    const tick = (time) => {
      this.now += ((time - last) / 1000) * this.speed;
      last = time;
      this.lanes.moveTo(this.now);
      this.#follow();
      if (this.now >= this.to) return this.pause();
      this.frame = requestAnimationFrame(tick);
    };
    this.frame = requestAnimationFrame(tick);
  }

  /** Selects the last span that has begun by now. */
  #follow() {
    const { now } = this;
    let { index } = this;
    while (index + 1 < this.order.length && momentOf(this.order[index + 1]) <= now) index++;
    if (index === this.index) return;
    this.select(this.order[index].id);
    this.now = now;
    this.lanes.moveTo(now);
  }

  #player() {
    this.button = element("button", { type: "button", onclick: () => this.toggle() }, "Play");
    return element(
      "div.bar",
      {},
      element("button", { type: "button", onclick: () => this.step(-1) }, "Previous"),
      this.button,
      element("button", { type: "button", onclick: () => this.step(1) }, "Next"),
      choice("Speed", SPEEDS, String(this.speed), (value) => (this.speed = Number(value))),
    );
  }

  #attempts() {
    const { attempts } = this.data;
    const failure = this.attempt.failure;
    const text = (one) => `${number(one.number)}: ${one.status}`;
    const select = choice(
      "Attempt",
      attempts.map((one) => [one.id, text(one)]),
      this.attempt.id,
      (id) => {
        this.options.onChange({ attempt: id, span: undefined });
        this.#showAttempt(
          attempts.find((one) => one.id === id),
          null,
        );
      },
    );
    return element(
      "div.stack",
      {},
      attempts.length > 1 && select,
      failure &&
        element(
          "p.notice.bad",
          {},
          badge(visible(failure.kind), "bad"),
          visible(`${failure.type ? `${failure.type}: ` : ""}${failure.message}`),
        ),
    );
  }

  #callHref(span) {
    return link(["runs", this.options.run, "rollouts", this.data.rollout.id, "calls", span.id], {
      attempt: this.attempt.id,
    });
  }

  #open(id) {
    const span = this.order.find((one) => one.id === id);
    if (span?.model) location.hash = this.#callHref(span);
  }
}
