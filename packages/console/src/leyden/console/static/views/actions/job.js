/**
 * One job: its command, its progress and its output.
 * @module
 */

import { get } from "../../api.js";
import { element } from "../../dom.js";
import { jobPanel } from "../../elements/job.js";
import { load } from "../../elements/page.js";
import { visible } from "../../format.js";
import { link } from "../../router.js";

/** @param {import("../../app.js").Page} page */
export async function show(page) {
  const { job: id } = page.parameters;
  page.title(`Job ${id}`);
  const target = element("div.stack");
  page.main.append(
    element("nav.crumbs", { "aria-label": "Breadcrumb" }, element("a", { href: "#/jobs" }, "Jobs"), ` / job ${id}`),
    target,
  );
  load(
    target,
    page.signal,
    () => get(["jobs", id], { signal: page.signal }),
    (job) => {
      target.append(element("h1", {}, visible(job.title)), jobPanel(job, page.signal));
      if (job.kind === "rescore")
        target.append(element("a", { href: link(["runs", job.subject.run, "reward"], { job: id }) }, "What this reward changes"));
    },
  );
}
