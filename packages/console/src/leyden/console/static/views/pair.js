/**
 * Two rollouts side by side, with the first difference marked. Each is named as RUN/ROLLOUT in the address.
 * @module
 */

import { get } from "../api.js";
import { element } from "../dom.js";
import { facts, load, problem } from "../elements/page.js";
import { rewardOf, RolloutPanel } from "../elements/rollout_panel.js";
import { number, visible } from "../format.js";
import { link } from "../router.js";
import { firstCharacter, firstDifference, inOrder, said } from "../spans.js";

/** @param {import("../app.js").Page} page */
export async function show(page) {
  page.title("Two rollouts");
  const body = element("div.stack");
  page.main.append(element("div.heading", {}, element("h1", {}, "Two rollouts side by side")), body);
  const names = [page.query.get("a"), page.query.get("b")].map(split);
  const [left, right] = names;
  if (!left || !right)
    return body.append(problem("The address must name two rollouts, as a=RUN/ROLLOUT and b=RUN/ROLLOUT.", null));
  const request = () =>
    Promise.all(names.map(({ run, id }) => get(["runs", run, "rollouts", id], { signal: page.signal })));
  await load(body, page.signal, request, (rollouts) => draw(page, body, names, rollouts));
}

function draw(page, body, names, rollouts) {
  const orders = rollouts.map((data, side) => inOrder(attemptOf(page, data, side)?.spans ?? []));
  const step = firstDifference(orders[0], orders[1]);
  const spans = orders.map((order) => (step === null ? null : (order[step] ?? null)));
  body.append(element("p.notice", { role: "status" }, differenceText(step, spans)));
  body.append(
    element(
      "div.columns",
      {},
      rollouts.map((data, side) => column(page, names[side].run, data, side, spans)),
    ),
  );
}

function column(page, run, data, side, spans) {
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
    element("a", { href: link(["runs", run, "rollouts", rollout.id]) }, visible(`${run} / ${rollout.id}`)),
  );
  return element(
    "div.stack.narrow",
    {},
    title,
    facts([
      ["Reward", number(rewardOf(data))],
      ["Status", rollout.status],
      ["Version", number(rollout.version)],
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

function split(name) {
  const slash = (name ?? "").indexOf("/");
  return slash > 0 ? { run: name.slice(0, slash), id: name.slice(slash + 1) } : null;
}
