/**
 * Buttons that start a command of `leyden`, where the console allows it.
 * @module
 */

import { post } from "../api.js";
import { element, fill } from "../dom.js";
import { jobPanel } from "./job.js";
import { problem } from "./page.js";

/**
 * A button that starts a job and shows it below itself. It is not drawn as a link, since it changes something.
 * @param {string} label
 * @param {object} options
 * @param {() => (string | number)[]} options.path of the API
 * @param {() => object} [options.body]
 * @param {string} [options.question] asked before; without one, the job starts at once
 * @param {AbortSignal} options.signal
 * @param {(job: any) => void} [options.onStart]
 * @param {(job: any) => void} [options.onEnd]
 * @param {(error: import("../api.js").ApiError) => boolean} [options.onRefused] what was sent cannot work; returns
 *     whether the page shows that in another place
 * @returns {HTMLElement}
 */
export function action(label, { path, body = () => ({}), question, signal, onStart = () => {}, onEnd = () => {}, onRefused = () => false }) {
  const place = element("div.stack");
  const button = element("button", { type: "button" }, label);
  button.addEventListener("click", async () => {
    if (question && !(await confirmed(question, label))) return;
    button.disabled = true;
    try {
      const job = await post(path(), body(), signal);
      onStart(job);
      const ended = (now) => {
        button.disabled = false;
        onEnd(now);
      };
      fill(place, jobPanel(job, signal, { onEnd: ended }));
    } catch (error) {
      if (signal.aborted) return;
      button.disabled = false;
      fill(place, !onRefused(error) && problem(error.message, null));
    }
  });
  return element("div.stack", {}, element("div", {}, button), place);
}

/**
 * Asks the reader in a dialog.
 * @param {string} question
 * @param {string} yes text of the button that agrees
 * @returns {Promise<boolean>}
 */
export function confirmed(question, yes) {
  const dialog = element(
    "dialog",
    { "aria-label": question },
    element("p", {}, question),
    element(
      "div.bar",
      {},
      element("button", { type: "button", onclick: () => dialog.close("yes") }, yes),
      element("button", { type: "button", autofocus: true, onclick: () => dialog.close("") }, "Cancel"),
    ),
  );
  document.body.append(dialog);
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    dialog.showModal();
  });
}
