/**
 * All studies: searches for better settings of a run by `leyden tune`.
 * @module
 */

import { get } from "../api.js";
import { element, fill } from "../dom.js";
import { empty, load, refreshed, smallTable, stateBadge } from "../elements/page.js";
import { moment, number, points, result, signed, visible } from "../format.js";
import { link } from "../router.js";

/** Seconds after which the list is requested again while the page is in sight. */
const EVERY = 5;

/** @param {import("../app.js").Page} page */
export async function show(page) {
  page.title("Studies");
  const target = element("div.stack");
  const about = "A study tries settings of a run, and compares them with its own on held-out tasks.";
  page.main.append(element("div.heading", {}, element("h1", {}, "Studies")), element("p.note", {}, about), target);
  const request = () => get(["studies"], { signal: page.signal });
  load(target, page.signal, request, (answer) => {
    target.before(refreshed(page.signal, EVERY, request, (next) => draw(target, next)));
    draw(target, answer);
  });
}

function draw(target, { studies, problems }) {
  const text = JSON.stringify([studies, problems]);
  if (target.dataset.drawn === text) return;
  target.dataset.drawn = text;
  const notices = problems.map((one) => element("p.notice.warn", {}, visible(`${one.where}: ${one.error}`)));
  if (!studies.length) {
    const said = "There are no studies yet. This command begins one; the page of a run prepares it under “Suggest settings”:";
    return fill(target, notices, empty(said, "leyden tune --config FILE --search learning_rate=1e-4..3e-3:log"));
  }
  const head = ["Study", "State", ">Trials", "Searched", "Held-out set", ">Default", ">Best", "Confirmed", "Last written"];
  fill(target, notices, smallTable("Studies", head, studies.map(row)));
}

function row(study) {
  return [
    element("a", { href: link(["studies", study.key]) }, visible(study.name)),
    stateBadge(study.state),
    `${number(study.finished)} of ${number(study.trials)} finished`,
    visible(study.searched.join(", ")),
    visible(study.held_out),
    result(study.default, study.is_share),
    result(study.best, study.is_share),
    confirmed(study),
    moment(study.updated),
  ];
}

function confirmed({ confirmed: found, is_share: isShare }) {
  if (!found) return "not measured";
  const show = isShare ? points : signed;
  const verdict = found.low > 0 ? "yes" : found.high < 0 ? "refuted" : "no";
  return `${verdict}: ${show(found.mean)} (${show(found.low)} to ${show(found.high)})`;
}
