/**
 * A strip of tokens, of which the reader selects one: with the mouse, ← and →, or j and k.
 * @module
 */

import { element } from "../dom.js";
import { tokenText } from "../format.js";

/** Tokens that are drawn at once; more come when the reader scrolls to their end. */
const CHUNK = 1500;

let made = 0;

export class TokenStrip {
  /**
   * @param {string} label
   * @param {string[]} texts one a token
   * @param {{signal: AbortSignal, onSelect: (index: number) => void, onPoint?: (index: number | null) => void, base?:
   *     string}} options
   *     `onPoint`: the mouse is over a token, or has left; `base`: a class of every token
   */
  constructor(label, texts, { signal, onSelect, onPoint = () => {}, base = "" }) {
    this.texts = texts;
    this.onSelect = onSelect;
    this.base = base;
    this.id = `tokens-${++made}`;
    this.selected = -1;
    /** @type {string[]} class of each token */
    this.classes = [];
    /** @type {HTMLElement[]} */
    this.drawn = [];
    this.end = element("span", { "aria-hidden": "true" }, " ");
    this.node = element(
      "div.tokens",
      {
        role: "listbox",
        "aria-label": label,
        tabindex: "0",
        "data-list": true,
        onkeydown: (event) => this.#keys(event),
      },
      this.end,
    );
    this.node.addEventListener("click", (event) => this.#pointed(event, (index) => this.#choose(index)));
    this.node.addEventListener("pointerover", (event) => this.#pointed(event, onPoint));
    this.node.addEventListener("pointerleave", () => onPoint(null));
    this.node.addEventListener("list:move", (event) => this.#choose(this.selected + event.detail));
    this.#drawTo(CHUNK);
    const sight = new IntersectionObserver(
      (entries) => entries.some((entry) => entry.isIntersecting) && this.#drawTo(this.drawn.length + CHUNK),
      { root: this.node },
    );
    sight.observe(this.end);
    signal.addEventListener("abort", () => sight.disconnect(), { once: true });
  }

  /**
   * Colours the tokens.
   * @param {string[]} classes one a token, "" for none
   */
  colour(classes) {
    this.classes = classes;
    for (const [index, token] of this.drawn.entries()) token.className = this.#className(index);
  }

  /**
   * Selects a token and scrolls to it; does not call `onSelect`.
   * @param {number} index
   */
  select(index) {
    if (index < 0 || index >= this.texts.length) return;
    this.#drawTo(index + 1);
    this.drawn[this.selected]?.setAttribute("aria-selected", "false");
    this.selected = index;
    const token = this.drawn[index];
    token.setAttribute("aria-selected", "true");
    this.node.setAttribute("aria-activedescendant", token.id);
    const top = token.offsetTop - this.node.offsetTop;
    if (top < this.node.scrollTop || top > this.node.scrollTop + this.node.clientHeight - 30)
      this.node.scrollTop = top - 60;
  }

  #choose(index) {
    const within = Math.max(0, Math.min(this.texts.length - 1, index));
    this.select(within);
    this.onSelect(within);
  }

  #drawTo(count) {
    const more = [];
    for (let index = this.drawn.length; index < Math.min(count, this.texts.length); index++) {
      const token = element(
        "span",
        { role: "option", id: `${this.id}-${index}`, "aria-selected": "false" },
        tokenText(this.texts[index]),
      );
      token.className = this.#className(index);
      this.drawn.push(token);
      more.push(token);
      if (this.texts[index].includes("\n")) more.push(element("br"));
    }
    this.end.before(...more);
  }

  #className(index) {
    return ["token", this.base, this.classes[index]].filter(Boolean).join(" ");
  }

  #pointed(event, act) {
    const token = event.target.closest(".token");
    if (token) act(Number(token.id.slice(this.id.length + 1)));
  }

  #keys(event) {
    const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
    if (!(event.key in moves)) return;
    this.#choose(this.selected + moves[event.key]);
    event.preventDefault();
  }
}
