/**
 * A job: the command that the console runs for the reader, how far it is, and what it printed.
 * @module
 */

import { get, post, watchJob } from "../api.js";
import { element, fill, setText } from "../dom.js";
import { duration, number, visible } from "../format.js";
import { command, problem, stateBadge } from "./page.js";

/** Milliseconds between two looks at the clock. */
const SECOND = 1000;

/**
 * Shows a job until it has ended.
 * @param {any} job as the server answered when it was started
 * @param {AbortSignal} signal
 * @param {{onEnd?: (job: any) => void, onChange?: (job: any) => void}} [listeners] `onEnd` gets the job with its result
 * @returns {HTMLElement}
 */
export function jobPanel(job, signal, { onEnd = () => {}, onChange = () => {} } = {}) {
  const bar = element("progress", { "aria-label": "Finished part", max: "1" });
  const state = element("span.bar", { role: "status" });
  const time = element("span.note");
  const output = element("pre.text", { tabindex: "0", role: "group", "aria-label": "Output", hidden: true });
  const trouble = element("div");
  const stop = element("button", { type: "button" }, "Stop");
  stop.addEventListener("click", async () => {
    stop.disabled = true;
    await post(["jobs", job.id, "stop"], {}).catch((error) => fill(trouble, problem(error.message, null)));
  });
  let shown = job;
  const drawTime = () => setText(time, elapsed(shown));
  // a job that reports nothing new sends no event
  const clock = setInterval(drawTime, SECOND);
  signal.addEventListener("abort", () => clearInterval(clock), { once: true });
  const draw = (now) => {
    shown = now;
    if (now.ended !== null) clearInterval(clock);
    fill(state, stateBadge(now.state), element("span.note", {}, joined([work(now), exit(now)])));
    drawTime();
    bar.hidden = now.total === null || now.ended !== null;
    if (now.total) bar.value = now.done / now.total;
    stop.hidden = now.ended !== null;
    output.hidden = !now.output.length;
    setText(output, visible(now.output.join("\n")));
  };
  const change = async (now) => {
    fill(trouble);
    draw(now);
    onChange(now);
    if (now.ended === null) return;
    try {
      onEnd(await get(["jobs", job.id], { signal }));
    } catch (error) {
      if (!signal.aborted) fill(trouble, problem(error.message, null));
    }
  };
  draw(job);
  watchJob(job.id, signal, change, (message) => fill(trouble, problem(message, null)));
  return element(
    "section.panel.stack",
    { "aria-label": `Job: ${job.title}` },
    command(job.command),
    element("div.bar", {}, state, time, bar, stop),
    trouble,
    output,
  );
}

/** @param {any} job */
export function progressText(job) {
  return joined([work(job), elapsed(job), exit(job)]);
}

function work(job) {
  const phase = job.phase && `${visible(job.phase)}: `;
  const isShown = job.total !== null && (job.ended === null || !phase);
  return isShown ? `${phase}${number(job.done)} of ${number(job.total)}` : "";
}

function elapsed(job) {
  return job.began === null ? "" : duration((job.ended ?? Date.now() / 1000) - job.began);
}

function exit(job) {
  return job.state === "failed" && job.exit_code !== null ? `exit code ${job.exit_code}` : "";
}

function joined(parts) {
  return parts.filter(Boolean).join(" · ");
}
