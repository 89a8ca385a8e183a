/**
 * Two rollouts side by side, with their first difference marked.
 * @module
 */

import { element } from "../dom.js";
import { number, visible } from "../format.js";
import { link } from "../router.js";
import { firstCharacter, firstDifference, inOrder, said } from "../spans.js";
import { facts } from "./page.js";
import { rewardOf, RolloutPanel } from "./rollout_panel.js";

/**
 * @param {import("../app.js").Page} page its address keeps the selections
 * @param {{run: string, id: string}[]} names key of the run and id of each rollout
 * @param {any[]} rollouts answers of `/rollouts/{id}`
 * @param {string[] | null} [titles] of both, for two variants of a trial; null: their names and versions
 * @returns {HTMLElement}
 */
export function pair(page, names, rollouts, titles = null) {
  const orders = rollouts.map((data, side) => inOrder(attemptOf(page, data, side)?.spans ?? []));
  const step = firstDifference(orders[0], orders[1]);
  const spans = orders.map((order) => (step === null ? null : (order[step] ?? null)));
  return element(
    "div.stack",
    {},
    element("p.notice", { role: "status" }, differenceText(step, spans)),
    element(
      "div.columns",
      {},
      rollouts.map((data, side) => column(page, names[side].run, titles?.[side] ?? null, data, side, spans)),
    ),
  );
}

function column(page, run, ownTitle, data, side, spans) {
  const { rollout } = data;
  const { mark } = marks(spans[side], spans[1 - side]);
  const panel = new RolloutPanel(data, {
    signal: page.signal,
    run,
    attempt: page.query.get(`attempt${side}`),
    span: page.query.get(`span${side}`),
    different: spans[side]?.id ?? null,
    mark,
    onChange: ({ attempt, span }) => page.remember({ [`attempt${side}`]: attempt, [`span${side}`]: span }),
  });
  const title = element(
    "h2",
    {},
    element("a", { href: link(["runs", run, "rollouts", rollout.id]) }, visible(ownTitle ?? `${run} / ${rollout.id}`)),
  );
  return element(
    "div.stack.narrow",
    {},
    title,
    facts([
      ["Reward", number(rewardOf(data))],
      ["Status", rollout.status],
      ...(ownTitle === null ? [["Version", number(rollout.version)]] : []),
    ]),
    panel.node,
  );
}

/** Where the two texts begin to differ, if they are texts of the same kind of span. */
function marks(own, other) {
  if (!own || !other || own.kind !== other.kind) return {};
  const text = (span) => span.model?.answer ?? span.tool?.result ?? span.text ?? "";
  return { mark: firstCharacter(text(own), text(other)) ?? undefined };
}

function differenceText(step, spans) {
  if (step === null) return "Both rollouts say the same in every step.";
  const [left, right] = spans.map((span) => (span ? `${span.kind} ${visible(span.title)}` : "nothing"));
  const what =
    left === right && said(spans[0]) !== said(spans[1]) ? `in ${left}` : `${left} on the left, ${right} on the right`;
  return `The first difference is in step ${step + 1}: ${what}. It is marked.`;
}

function attemptOf(page, data, side) {
  return (
    data.attempts.find((one) => one.id === page.query.get(`attempt${side}`)) ?? data.attempts[data.attempts.length - 1]
  );
}
