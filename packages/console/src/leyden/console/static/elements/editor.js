/**
 * A text area for programs: line numbers, Tab that indents, and Escape after which Tab leaves it.
 * @module
 */

import { element, setText } from "../dom.js";
import { indent, lineCount, lineRange, newLine, outdent } from "../editing.js";

const FEWEST_ROWS = 12;
const MOST_ROWS = 30;
const HINT = "Tab indents. Escape, then Tab leaves the text.";
const RELEASED = "Tab now leaves the text.";

let made = 0;

export class Editor {
  /**
   * @param {string} label
   * @param {{readOnly?: boolean, onInput?: (text: string) => void, onSubmit?: () => void}} [options] `onSubmit`:
   *     the reader pressed Ctrl and Enter
   */
  constructor(label, { readOnly = false, onInput = () => {}, onSubmit = () => {} } = {}) {
    const id = `editor-${++made}`;
    this.onInput = onInput;
    this.onSubmit = onSubmit;
    this.released = false;
    this.lines = element("pre.editor-lines", { "aria-hidden": "true" });
    this.field = element("textarea.editor-text", {
      id,
      wrap: "off",
      spellcheck: "false",
      autocapitalize: "off",
      autocomplete: "off",
      readonly: readOnly,
      "aria-describedby": readOnly ? null : `${id}-hint`,
    });
    this.hint = element("p.note", { id: `${id}-hint`, role: "status" }, HINT);
    this.label = element("label.note", { for: id }, label);
    this.node = element(
      "div.editor",
      {},
      this.label,
      element("div.editor-frame", {}, this.lines, this.field),
      readOnly ? null : this.hint,
    );
    this.field.addEventListener("scroll", () => (this.lines.scrollTop = this.field.scrollTop));
    if (readOnly) return;
    this.field.addEventListener("input", () => this.#changed());
    this.field.addEventListener("keydown", (event) => this.#press(event));
    this.field.addEventListener("blur", () => this.#release(false));
  }

  /** @param {string} label */
  rename(label) {
    setText(this.label, label);
  }

  /** @returns {string} */
  get text() {
    return this.field.value;
  }

  /**
   * Shows another text.
   * @param {string} text
   */
  show(text) {
    this.field.value = text;
    this.field.rows = Math.min(MOST_ROWS, Math.max(FEWEST_ROWS, lineCount(text) + 1));
    this.field.scrollTop = 0;
    this.#number();
  }

  /**
   * Selects a line.
   * @param {number} line counted from 1
   */
  goTo(line) {
    this.field.focus();
    this.field.setSelectionRange(...lineRange(this.text, line));
    this.field.scrollTop = ((line - 4) / lineCount(this.text)) * this.field.scrollHeight;
  }

  #changed() {
    this.#release(false);
    this.#number();
    this.onInput(this.text);
  }

  #number() {
    setText(this.lines, Array.from({ length: lineCount(this.text) }, (_, index) => index + 1).join("\n"));
  }

  #press(event) {
    if (event.isComposing || event.altKey) return;
    if (event.key === "Escape") {
      if (!this.released) event.stopPropagation(); // a second Escape leaves the text, as in every field
      this.#release(true);
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      this.onSubmit();
    } else if (event.key === "Tab" && !this.released && !event.ctrlKey && !event.metaKey) {
      this.#apply(event, event.shiftKey ? outdent : indent);
    } else if (event.key === "Enter" && !event.shiftKey) {
      this.#apply(event, newLine);
    }
  }

  #apply(event, change) {
    event.preventDefault();
    const { field } = this;
    const { from, to, text, start, end } = change(field.value, field.selectionStart, field.selectionEnd);
    if (field.value.slice(from, to) !== text) {
      field.setSelectionRange(from, to);
      // the only way to change the text that the browser's own undo knows
      const done = text ? document.execCommand("insertText", false, text) : document.execCommand("delete");
      if (!done) {
        field.setRangeText(text, from, to);
        this.#changed();
      }
    }
    field.setSelectionRange(start, end);
  }

  #release(released) {
    this.released = released;
    setText(this.hint, released ? RELEASED : HINT);
  }
}
