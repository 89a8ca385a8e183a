/**
 * One rollout: what became of it, its group, and what happened in it.
 * @module
 */

import { get } from "../api.js";
import { element } from "../dom.js";
import { badge, facts, fold, load, longText, panel } from "../elements/page.js";
import { rewardOf, RolloutPanel } from "../elements/rollout_panel.js";
import { duration, moment, number, plain, visible } from "../format.js";
import { link } from "../router.js";
import { runFrame } from "./run_frame.js";

/** @param {import("../app.js").Page} page */
export async function show(page) {
  const { key, rollout } = page.parameters;
  const crumbs = [
    ["Rollouts", link(["runs", key, "rollouts"])],
    [rollout, null],
  ];
  runFrame(page, "rollouts", crumbs, (_, body) => {
    const target = element("div.stack");
    body.append(target);
    load(
      target,
      page.signal,
      () => get(["runs", key, "rollouts", rollout], { signal: page.signal }),
      (data) => draw(page, target, data),
    );
  });
}

function draw(page, target, data) {
  const { key } = page.parameters;
  const rollout = new RolloutPanel(data, {
    signal: page.signal,
    run: key,
    attempt: page.query.get("attempt"),
    span: page.query.get("span"),
    onChange: page.remember,
  });
  target.append(summary(key, data), ...group(key, data), rollout.node);
  document.addEventListener(
    "keydown",
    (event) => {
      const { target: focused } = event;
      if (
        event.key !== " " ||
        !(focused instanceof Element) ||
        focused.closest("button, a, input, select, summary, dialog, pre")
      )
        return;
      event.preventDefault();
      rollout.toggle();
    },
    { signal: page.signal },
  );
}

function summary(key, data) {
  const { rollout, outcome } = data;
  const seconds = rollout.started !== null && rollout.ended !== null ? rollout.ended - rollout.started : null;
  const entries = [
    ["Status", rollout.status],
    ["Mode", [rollout.mode, rollout.set].filter(Boolean).join(", ") || "–"],
    ["Reward", number(rewardOf(data))],
    ["Task", number(rollout.task)],
    ["Version", number(rollout.version)],
    ["Started", moment(rollout.started)],
    ["Duration", duration(seconds)],
    rollout.group && [
      "Group",
      element("a", { href: link(["runs", key, "rollouts"], { group: rollout.group }) }, visible(rollout.group)),
    ],
  ].filter(Boolean);
  const trained = outcome.trained
    ? `trained in ${outcome.steps.join(", ")}`
    : `not trained${outcome.reason ? `: ${outcome.reason}` : ""}`;
  const why = [outcome.means, outcome.detail, outcome.change && `To change that: ${outcome.change}`].filter(Boolean);
  return panel(
    "Outcome",
    element("p", {}, badge(visible(trained), outcome.trained ? "good" : "warn")),
    ...why.map((text) => element("p", {}, visible(text))),
    ...outcome.remarks.map((text) => element("p.note", {}, visible(text))),
    facts(entries),
    fold("Task's input", (body) => body.append(longText(plain(rollout.input), { name: "input" }))),
  );
}

function group(key, { rollout, siblings }) {
  if (siblings.length < 2) return [];
  const item = (one) => {
    const here = one.id === rollout.id;
    const text = `${visible(one.id)}: ${number(one.reward)}`;
    const name = here
      ? element("strong", {}, text)
      : element("a", { href: link(["runs", key, "rollouts", one.id]) }, text);
    const pair = link(["compare", "rollouts"], { a: `${key}/${rollout.id}`, b: `${key}/${one.id}` });
    return element(
      "li",
      {},
      name,
      one.trained === null || one.trained ? "" : " (not trained)",
      !here && [" · ", element("a", { href: pair, "aria-label": `Compare with ${one.id}` }, "compare")],
    );
  };
  return [panel(`Group of ${siblings.length}`, element("ul.siblings", {}, siblings.map(item)))];
}
