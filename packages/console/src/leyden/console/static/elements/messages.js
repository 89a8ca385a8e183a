/**
 * The messages of a model call.
 * @module
 */

import { element } from "../dom.js";
import { plain, visible } from "../format.js";
import { longText } from "./page.js";

/** @param {any[]} messages of a request, or the answer */
export function messageList(messages) {
  if (!messages.length) return element("p.note", {}, "None.");
  return element("div", {}, messages.map(message));
}

function message({ role, name, content, tool_calls: calls }) {
  const parts = Array.isArray(content)
    ? content
    : content === null || content === undefined || content === ""
      ? []
      : [content];
  return element(
    "article.message",
    {},
    element("h3", {}, visible([role, name].filter(Boolean).join(", "))),
    parts.map((part) => longText(partText(part), { name: `text of ${role}` })),
    (calls ?? []).map((call) => {
      const called = call.function ?? call;
      return element(
        "div",
        {},
        element("p.note", {}, `calls ${visible(String(called.name))}`),
        longText(plain(called.arguments), { name: "arguments" }),
      );
    }),
  );
}

function partText(part) {
  if (typeof part === "string") return part;
  return typeof part?.text === "string" ? part.text : plain(part);
}
