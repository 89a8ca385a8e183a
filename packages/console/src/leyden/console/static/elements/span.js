/**
 * Everything that is known of one span.
 * @module
 */

import { element } from "../dom.js";
import { counted, duration, moment, number, plain, visible } from "../format.js";
import { badge, facts, fold, longText } from "./page.js";

/**
 * @param {any} span
 * @param {string | null} href of the page of its model call
 * @param {number} [mark] character of the answer, result or text from which it is marked
 * @returns {Node[]}
 */
export function spanDetails(span, href, mark) {
  const seconds = span.end === null ? null : span.end - span.start;
  const about = [
    ["Kind", span.kind],
    ["Agent", visible(span.agent ?? "–")],
    span.node && ["Node", visible(span.node)],
    ["Began", moment(span.start)],
    ["Duration", duration(seconds)],
  ].filter(Boolean);
  const rest = Object.keys(span.attributes ?? {}).length > 0;
  return [
    element("h2", {}, visible(span.title)),
    span.error && element("p.notice.bad", {}, visible(span.error)),
    facts(about),
    ...(span.model ? modelDetails(span.model, href, mark) : []),
    ...(span.tool ? toolDetails(span.tool, mark) : []),
    ...(span.reward ? rewardDetails(span.reward) : []),
    span.text && longText(span.text, { mark }),
    rest && fold("Other attributes", (body) => body.append(longText(plain(span.attributes), { name: "attributes" }))),
  ].filter(Boolean);
}

function modelDetails(model, href, mark) {
  const versions = model.versions.map(([version, tokens]) => `${version} (${counted(tokens, "token")})`).join(", ");
  const trained = model.trained
    ? `trained in ${model.steps.join(", ")}`
    : `not trained${model.reason ? `: ${model.reason}` : ""}`;
  return [
    element(
      "p.bar",
      {},
      href && element("a", { href }, "Open the call, token by token"),
      badge(visible(trained), model.trained ? "good" : "plain"),
      !model.moves && model.trained && badge("moved no weight"),
    ),
    facts([
      ["Policy", visible(model.policy ?? "–")],
      ["Version", versions || "–"],
      ["Asked for", visible(model.model ?? "–")],
      ["Prompt", counted(model.prompt_tokens, "token")],
      ["Response", counted(model.response_tokens, "token")],
      ["Ended by", visible(model.finish ?? "–")],
      ["Latency", duration(model.latency)],
      ["Messages", number(model.messages)],
    ]),
    element("h3", {}, "Answer"),
    longText(model.answer ?? "", { name: "answer", mark }),
    ...model.tool_calls.flatMap((call) => [
      element("h3", {}, `Calls ${visible(call.name)}`),
      longText(plain(call.arguments), { name: "arguments" }),
    ]),
  ];
}

function toolDetails(tool, mark) {
  return [
    element("h3", {}, `Arguments of ${visible(tool.name)}`),
    longText(plain(tool.arguments), { name: "arguments" }),
    element("h3", {}, "Result"),
    longText(plain(tool.result), { name: "result", mark }),
  ];
}

function rewardDetails(reward) {
  const dimensions = Object.entries(reward.dimensions ?? {}).map(([name, value]) => [visible(name), number(value)]);
  return [
    facts([["Reward", number(reward.value)], ...dimensions]),
    reward.feedback && longText(reward.feedback, { name: "feedback" }),
  ].filter(Boolean);
}
