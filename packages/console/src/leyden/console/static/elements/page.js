/**
 * Parts of every page: loading, errors, empty states, panels, badges, commands to copy, and texts of any length.
 * @module
 */

import { element, fill } from "../dom.js";
import { visible } from "../format.js";

/** Characters of a text that are shown before the reader asks for the rest. */
const SHOWN = 4000;

/** How a run's state looks. */
export const STATES = {
  running: "live",
  finished: "good",
  failed: "bad",
  interrupted: "warn",
  stopped: "plain",
  "not finished": "plain",
  "ended before its first step": "bad",
  waiting: "plain",
};

/**
 * Loads data and draws it into `target`. Until then it says so; an error becomes one line with a button to try again.
 * @template Data
 * @param {Element} target
 * @param {AbortSignal} signal
 * @param {() => Promise<Data>} request
 * @param {(data: Data) => void} draw
 */
export async function load(target, signal, request, draw) {
  const waiting = setTimeout(() => fill(target, element("p.note", { "aria-busy": "true" }, "Loading…")), 150);
  try {
    const data = await request();
    clearTimeout(waiting);
    if (signal.aborted) return;
    fill(target);
    draw(data);
  } catch (error) {
    clearTimeout(waiting);
    if (signal.aborted) return;
    if (error.status === undefined) console.error(error);
    fill(
      target,
      failure(error, () => load(target, signal, request, draw)),
    );
  }
}

/**
 * Requests something again and again while the page is in sight. While that fails, the returned node says why.
 * @template Data
 * @param {AbortSignal} signal ends it
 * @param {number} seconds between two requests
 * @param {() => Promise<Data>} request
 * @param {(data: Data) => void} draw
 * @returns {HTMLElement}
 */
export function refreshed(signal, seconds, request, draw) {
  const trouble = element("div.trouble");
  let said = "";
  const say = (message) => {
    if (message !== said) fill(trouble, message && problem(message, null));
    said = message;
  };
  const look = async () => {
    if (document.hidden) return;
    try {
      const data = await request();
      if (signal.aborted) return;
      say("");
      draw(data);
    } catch (error) {
      if (!signal.aborted) say(error.message);
    }
  };
  const timer = setInterval(look, seconds * 1000);
  signal.addEventListener("abort", () => clearInterval(timer), { once: true });
  return trouble;
}

/**
 * One line that says why a request failed; it is marked if the server did not answer.
 * @param {Error & {status?: number}} error
 * @param {() => void} retry
 */
export function failure(error, retry) {
  const line = problem(error.message, retry);
  if (error.status === 0) line.classList.add("unanswered");
  return line;
}

/**
 * One line that says what went wrong.
 * @param {string} message
 * @param {(() => void) | null} retry
 */
export function problem(message, retry) {
  const button = retry && element("button", { type: "button", onclick: retry }, "Try again");
  return element("div.problem", { role: "alert" }, element("p", {}, visible(message)), button);
}

/**
 * What a page says when there is nothing to show.
 * @param {string} text
 * @param {string} [fillsIt] the command that changes that
 */
export function empty(text, fillsIt) {
  return element("div.empty", {}, element("p", {}, text), fillsIt && command(fillsIt));
}

/**
 * A section with a heading.
 * @param {string} title
 * @param {...import("../dom.js").Child} children
 */
export function panel(title, ...children) {
  return element("section.panel", { "aria-label": title }, element("h2", {}, title), ...children);
}

/**
 * A section that is drawn when the reader opens it.
 * @param {string} title
 * @param {(body: HTMLElement) => void} draw
 * @param {boolean} [open]
 */
export function fold(title, draw, open = false) {
  const body = element("div.fold-body");
  const details = element("details.fold", { open }, element("summary", {}, title), body);
  const first = () => details.open && !body.hasChildNodes() && draw(body);
  details.addEventListener("toggle", first);
  first();
  return details;
}

/**
 * A word in a frame.
 * @param {string} text
 * @param {"good" | "bad" | "warn" | "live" | "plain"} [tone]
 */
export function badge(text, tone = "plain") {
  return element(`span.badge.${tone}`, {}, text);
}

/** @param {string} state of a run or a job */
export function stateBadge(state) {
  return badge(state, STATES[state] ?? "plain");
}

/**
 * A shell command with a button that copies it. The console itself changes nothing.
 * @param {string} text
 */
export function command(text) {
  const button = element("button.plain", { type: "button", "aria-label": `Copy: ${text}` }, "Copy");
  button.addEventListener("click", async () => {
    const copied = await navigator.clipboard?.writeText(text).then(
      () => true,
      () => false,
    );
    button.textContent = copied ? "Copied" : "Select the text to copy it";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  return element("div.command", {}, element("code", {}, visible(text)), button);
}

/**
 * A text of an agent, of any length: the beginning, and a button for the rest.
 * @param {string} text
 * @param {{name?: string, mark?: number}} [options] `mark`: a character from which the text is marked
 */
export function longText(text, { name = "text", mark } = {}) {
  const pre = element("pre.text", { dir: "auto", tabindex: "0", role: "group", "aria-label": name });
  const draw = (shown) => {
    if (mark === undefined || mark >= shown.length) return fill(pre, visible(shown));
    return fill(pre, visible(shown.slice(0, mark)), element("mark", {}, visible(shown.slice(mark))));
  };
  if (text.length <= SHOWN) {
    draw(text);
    return pre;
  }
  const from = Math.max(0, Math.min(mark ?? 0, text.length) - SHOWN / 2);
  draw(text.slice(0, from + SHOWN));
  const label = `Show all ${text.length.toLocaleString("en-GB")} characters`;
  const more = element("button.plain", { type: "button" }, label);
  more.addEventListener("click", () => {
    draw(text);
    more.remove();
  });
  return element("div", {}, pre, more);
}

/**
 * Names and values. A value may be a node.
 * @param {import("../dom.js").Child[][]} entries name and value of each
 * @param {"grid" | "rows"} [form] beside each other, or one a row
 */
export function facts(entries, form = "grid") {
  return element(
    `dl.facts.${form}`,
    {},
    entries.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
  );
}

/**
 * A small table that is not virtual.
 * @param {string} label
 * @param {string[]} head a title that begins with ">" is of numbers, aligned to the right
 * @param {import("../dom.js").Child[][]} rows
 */
export function smallTable(label, head, rows) {
  const numbers = head.map((title) => title.startsWith(">"));
  const cell = (tag, child, index) =>
    element(numbers[index] ? `${tag}.number` : tag, tag === "th" ? { scope: "col" } : {}, child);
  return element(
    "div.scroll-x",
    { tabindex: "0", role: "group", "aria-label": label },
    element(
      "table",
      {},
      element("caption.visually-hidden", {}, label),
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          head.map((title, index) => cell("th", title.replace(/^>/, ""), index)),
        ),
      ),
      element(
        "tbody",
        {},
        rows.map((row) =>
          element(
            "tr",
            {},
            row.map((child, index) => cell("td", child, index)),
          ),
        ),
      ),
    ),
  );
}

/**
 * A labelled choice.
 * @param {string} label
 * @param {string[][]} options value and text of each
 * @param {string} value
 * @param {(value: string) => void} onChange
 */
export function choice(label, options, value, onChange) {
  const select = element("select", { onchange: () => onChange(select.value) });
  setOptions(select, options, value);
  return element("label.field", {}, element("span", {}, label), select);
}

/**
 * Replaces the options of a select, unless they are the same.
 * @param {HTMLSelectElement} select
 * @param {string[][]} options value and text of each
 * @param {string} value
 */
export function setOptions(select, options, value) {
  const known = JSON.stringify(options);
  if (select.dataset.known !== known) {
    select.dataset.known = known;
    fill(
      select,
      options.map(([one, text]) => element("option", { value: one }, visible(text))),
    );
  }
  select.value = value;
}
