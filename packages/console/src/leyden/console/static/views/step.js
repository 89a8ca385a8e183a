/**
 * One step: how the losses of its calls sum to the loss that was logged.
 * @module
 */

import { get } from "../api.js";
import { element } from "../dom.js";
import { empty, facts, load, panel } from "../elements/page.js";
import { Table } from "../elements/table.js";
import { exact, number, signed, visible } from "../format.js";
import { link } from "../router.js";
import { inTheFolder, runFrame } from "./run_frame.js";

/** @param {import("../app.js").Page} page */
export async function show(page) {
  const { key, step } = page.parameters;
  runFrame(page, "", [[`Step ${step}`, null]], (run, body) => {
    const target = element("div.stack");
    body.append(
      element("p", {}, element("a", { href: link(["runs", key, "rollouts"], { step }) }, "Rollouts of this step")),
      target,
    );
    load(
      target,
      page.signal,
      () => get(["runs", key, "step", step], { signal: page.signal }),
      (answer) => draw(page, run, target, answer),
    );
  });
}

function draw(page, run, target, answer) {
  const policies = Object.entries(answer.policies);
  if (run.folder === null) return target.append(inTheFolder(run, "The losses of this step's tokens are"));
  if (!answer.recorded || !policies.length) {
    return target.append(
      empty(
        "The losses of this step's tokens were not recorded. The numbers of the step are on the overview of the run.",
      ),
    );
  }
  for (const [name, policy] of policies) {
    const table = new Table(`Calls that ${name} learned from`, columns(page.parameters.key), {
      signal: page.signal,
      sort: page.query.get("sort") ?? "",
      onSort: (sort) => page.remember({ sort }),
      open: (call) => href(page.parameters.key, call),
    });
    table.setRows(policy.calls);
    const sums = [
      ["Sum of all shown token losses", exact(policy.sum)],
      ["Logged loss", exact(policy.loss)],
      ["Difference", policy.loss === null ? "–" : signed(policy.sum - policy.loss)],
      ["Tokens", number(policy.tokens)],
      ["Optimizer steps", number(policy.optimizer_steps)],
    ];
    target.append(panel(visible(name), facts(sums), table.node));
    table.draw();
  }
}

function columns(key) {
  const numeric = (name, title, width) => ({
    key: name,
    title,
    width,
    number: true,
    text: (call) => number(call[name]),
    value: (call) => call[name],
  });
  return [
    {
      key: "rollout",
      title: "Rollout",
      width: 200,
      middle: true,
      text: (call) => visible(call.rollout),
      value: (call) => call.rollout,
      href: (call) => link(["runs", key, "rollouts", call.rollout], { attempt: call.attempt }),
    },
    { key: "span", title: "Call", width: 180, text: (call) => visible(call.span), href: (call) => href(key, call) },
    numeric("tokens", "Tokens", 90),
    numeric("advantage", "Advantage", 110),
    numeric("share", "Share of the loss", 150),
  ];
}

function href(key, call) {
  return link(["runs", key, "rollouts", call.rollout, "calls", call.span], { attempt: call.attempt });
}
