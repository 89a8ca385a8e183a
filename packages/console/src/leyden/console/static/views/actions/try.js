/**
 * Two variants of a run's prompts or policy on the same tasks: the form, and then the trial while it runs.
 * @module
 */

import { actionsAllowed, get, post } from "../../api.js";
import { element, fill } from "../../dom.js";
import { jobPanel } from "../../elements/job.js";
import { command, empty, load, panel, problem } from "../../elements/page.js";
import { Trial } from "../../elements/trial.js";
import { trialForm } from "../../elements/trial_form.js";
import { go, link } from "../../router.js";
import { runFrame } from "../run_frame.js";

/** @param {import("../../app.js").Page} page */
export async function show(page) {
  const { key } = page.parameters;
  const id = page.query.get("job");
  const crumbs = id
    ? [
        ["Try", link(["runs", key, "try"])],
        [`Trial ${id}`, null],
      ]
    : [["Try", null]];
  const isAllowed = await actionsAllowed();
  runFrame(page, "try", crumbs, (run, body) => {
    const target = element("div.stack");
    body.append(target);
    if (id && isAllowed) {
      const request = () => get(["jobs", id], { signal: page.signal });
      load(target, page.signal, request, (job) => target.append(new Trial(page, job).node));
      return;
    }
    const request = () => get(["runs", key, "try"], { signal: page.signal });
    load(target, page.signal, request, (offer) => draw(page, run, target, offer, isAllowed));
  });
}

function draw(page, run, target, offer, isAllowed) {
  if (offer.problem) return fill(target, empty(`Nothing can be tried here: ${offer.problem}.`));
  if (!isAllowed) return fill(target, ...withoutActions(offer.commands));
  const { key } = page.parameters;
  const trouble = element("div");
  const finding = element("div");
  const again = async () => {
    const next = await get(["runs", key, "try"], { signal: page.signal });
    draw(page, run, target, next, isAllowed);
  };
  const watch = (job) => {
    const onEnd = (ended) => ended.exit_code === 0 && again();
    fill(finding, panel("Find the agent's prompts", jobPanel(job, page.signal, { onEnd })));
  };
  const fails = (error) => fill(trouble, problem(error.message, null));
  const find = async (tasks) => {
    fill(trouble);
    try {
      watch(await post(["runs", key, "try", "find"], { tasks }, page.signal));
    } catch (error) {
      fails(error);
    }
  };
  const start = async (body) => {
    fill(trouble);
    try {
      const job = await post(["runs", key, "try"], body, page.signal);
      go(link(["runs", key, "try"], { job: job.id }));
    } catch (error) {
      fails(error);
    }
  };
  fill(target, trialForm(page, run, offer, { find, start, refuse: (why) => fails(new Error(why)) }), trouble, finding);
}

function withoutActions({ find, try: compare }) {
  return [
    empty(
      "This console only reads. With this option, this page compares two prompts or policies:",
      "leyden console --allow-actions",
    ),
    panel(
      "The same in a shell",
      element("p", {}, "Find the agent's prompts, and give one of them a new_text in prompts.yaml:"),
      command(find),
      element("p", {}, "Compare them with the agent's own, and look at the rollouts:"),
      command(compare),
      command("leyden console sqlite:///trial.db"),
    ),
  ];
}
