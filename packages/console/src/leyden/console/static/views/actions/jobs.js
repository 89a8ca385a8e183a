/**
 * The jobs of the console: commands that its pages have started.
 * @module
 */

import { actionsAllowed, get } from "../../api.js";
import { element, fill } from "../../dom.js";
import { progressText } from "../../elements/job.js";
import { empty, load, refreshed, smallTable, stateBadge } from "../../elements/page.js";
import { moment, visible } from "../../format.js";
import { link } from "../../router.js";

/** Seconds after which the list is requested again while the page is in sight. */
const EVERY = 2;

/** @param {import("../../app.js").Page} page */
export async function show(page) {
  page.title("Jobs");
  const target = element("div.stack");
  page.main.append(element("h1", {}, "Jobs"), target);
  if (!(await actionsAllowed()))
    return fill(target, empty("This console only reads. Pages can start commands if it is started so:", "leyden console --allow-actions"));
  const request = () => get(["jobs"], { signal: page.signal });
  load(target, page.signal, request, (jobs) => {
    target.before(refreshed(page.signal, EVERY, request, (next) => draw(target, next)));
    draw(target, jobs);
  });
}

function draw(target, jobs) {
  if (!jobs.length)
    return fill(target, empty("No page has started a command since the console began. The pages of a run start them."));
  const rows = jobs.map((job) => [
    element("a", { href: link(["jobs", job.id]) }, visible(job.title)),
    stateBadge(job.state),
    progressText(job),
    moment(job.created),
  ]);
  fill(target, smallTable("Jobs", ["What", "State", "Progress", "Started"], rows));
}
