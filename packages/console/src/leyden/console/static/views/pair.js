/**
 * Two rollouts side by side, with the first difference marked. Each is named as RUN/ROLLOUT in the address.
 * @module
 */

import { get } from "../api.js";
import { element } from "../dom.js";
import { load, problem } from "../elements/page.js";
import { pair } from "../elements/rollout_pair.js";

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
  await load(body, page.signal, request, (rollouts) => body.append(pair(page, names, rollouts)));
}

function split(name) {
  const slash = (name ?? "").indexOf("/");
  return slash > 0 ? { run: name.slice(0, slash), id: name.slice(slash + 1) } : null;
}
