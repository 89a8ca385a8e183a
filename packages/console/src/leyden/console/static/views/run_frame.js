/**
 * What all pages of a run have in common: its name and state, the links between them, and its live changes.
 * @module
 */

import { get, watchRun } from "../api.js";
import { element, fill } from "../dom.js";
import { badge, empty, load, problem, stateBadge } from "../elements/page.js";
import { number, shellWord, visible } from "../format.js";
import { link, redraw } from "../router.js";

const PAGES = [
  ["", "Overview"],
  ["rollouts", "Rollouts"],
  ["versions", "Versions"],
  ["chat", "Chat"],
  ["prompts", "Prompts"],
  ["reward", "Reward"],
  ["try", "Try"],
  ["health", "Health"],
  ["bottlenecks", "Bottlenecks"],
];

/** Pages that show what the answer about a run has, so that they say which of its files is damaged. */
const FROM_DETAIL = ["", "versions", "chat", "try"];

/** Pages that have something, of the runs that were looked at: the tabs are there before the run's data are. */
const known = new Map();

/**
 * Draws the heading of a run and, below it, what `draw` makes of it.
 * @param {import("../app.js").Page} page
 * @param {string} current the page, as in the address; "" for the overview
 * @param {(string | null)[][]} crumbs what follows the run in the breadcrumb: text and link
 * @param {(run: any, body: HTMLElement) => void} draw
 * @returns {{news: HTMLElement, onChange: (listener: (change: any) => void) => void}} `news` is a place
 *     above the content
 */
export function runFrame(page, current, crumbs, draw) {
  const { key } = page.parameters;
  const heading = element("div.heading");
  const trouble = element("div.trouble");
  const news = element("div.trouble");
  const body = element("div.run-body");
  /** @type {((change: any) => void)[]} */
  const listeners = [];
  const tabs = element("nav.tabs", { "aria-label": "Pages of the run" });
  drawTabs(tabs, key, current);
  page.main.append(heading, tabs, trouble, news, body);
  const title = (label) => page.title(crumbs.length ? `${crumbs[crumbs.length - 1][0]} · ${label}` : label);
  title(key);
  drawHeading(heading, { key, label: key }, crumbs);
  load(
    body,
    page.signal,
    () => get(["runs", key], { signal: page.signal }),
    (run) => {
      known.set(key, run.pages);
      drawTabs(tabs, key, current);
      title(visible(run.label));
      drawHeading(heading, run, crumbs);
      if (FROM_DETAIL.includes(current)) body.append(...run.problems.map((one) => problem(one, null)));
      draw(run, body);
      const onChange = (change) => {
        if (change.began !== run.began) {
          page.say("Another run has taken the place of this one.");
          return redraw();
        }
        const wasAway = trouble.hasChildNodes();
        fill(trouble);
        if (wasAway && body.querySelector(".unanswered")) return redraw();
        if (change.state !== run.state) page.say(`The run is now: ${change.state}.`);
        if (change.state !== run.state || change.step !== run.step) {
          Object.assign(run, { state: change.state, step: change.step, error: change.error });
          drawHeading(heading, run, crumbs);
        }
        for (const listener of listeners) listener(change);
      };
      watchRun(key, page.signal, onChange, (message) => fill(trouble, problem(message, null)));
    },
  );
  return { news, onChange: (listener) => listeners.push(listener) };
}

/**
 * Tells the reader of a page that is not live that the run has gone on, with a button that shows the page anew.
 * @param {ReturnType<typeof runFrame>} frame
 */
export function offerRefresh(frame) {
  /** @type {number | null} */
  let first = null;
  frame.onChange(({ lines }) => {
    first ??= lines;
    if (lines === first || frame.news.hasChildNodes()) return;
    const button = element("button", { type: "button", onclick: redraw }, "Show what is new");
    frame.news.append(
      element("p.notice", { role: "status" }, "The run has gone on since this page was opened.", button),
    );
  });
}

/**
 * A sentence on what is missing, which may still come as long as the run goes on.
 * @param {any} run
 * @param {string} text without its full stop
 */
export function missing(run, text) {
  return run.state === "running" ? `${text} yet.` : `${text}.`;
}

/**
 * What a page says when the run has nothing to show.
 * @param {any} run
 * @param {string} text what there is none of, without a full stop
 * @param {string} how how a run comes to it; said with the command that goes on with the run, if one can
 */
export function nothingOf(run, text, how) {
  const resume = run.commands.find((one) => one.command.includes(" --resume "))?.command;
  const said = missing(run, text);
  return resume ? empty(`${said} ${how}`, resume) : empty(said);
}

/**
 * A line in the place of what only the folder of a run has.
 * @param {any} run
 * @param {string} what
 */
export function inTheFolder(run, what) {
  const here = missing(run, "Not known");
  return element("p.note", {}, run.folder === null ? `${what} in the run's folder, ${whereFolderIs(run)}.` : here);
}

/**
 * Where the folder of a run is that is read from a store alone, and the command that opens it.
 * @param {any} run
 */
export function whereFolderIs(run) {
  const here = run.folder_here;
  return here ? `${here}, which leyden console ${shellWord(here)} opens` : "which is not on this machine";
}

/**
 * How commands of `leyden` name a run: by its folder, which may have been renamed since the run began.
 * @param {any} run
 * @returns {{name: string, where: string}} not yet quoted, and ` --runs FOLDER` or an empty text
 */
export function inCommands(run) {
  const where = run.source === "runs" || run.source === "runs/" ? "" : ` --runs ${shellWord(run.source)}`;
  return { name: run.folder?.split("/").pop() || run.name, where };
}

function drawHeading(heading, run, crumbs) {
  const trail = [element("a", { href: "#/runs" }, "Runs")];
  if (crumbs.length) trail.push(" / ", element("a", { href: link(["runs", run.key]) }, visible(run.label)));
  for (const [text, href] of crumbs) trail.push(" / ", href ? element("a", { href }, visible(text)) : visible(text));
  const title = crumbs.length ? crumbs[crumbs.length - 1][0] : run.label;
  const steps = run.steps ? `step ${number(run.step)} of ${number(run.steps)}` : `step ${number(run.step)}`;
  const state = run.state
    ? [
        stateBadge(run.state),
        element("span.note", {}, steps),
        ...run.alerts.filter((one) => one.until === null).map((one) => badge(visible(one.name), "warn")),
      ]
    : [];
  fill(
    heading,
    element("div.crumbs", {}, element("nav", { "aria-label": "Breadcrumb" }, trail), state),
    element("h1", {}, visible(title)),
  );
}

/** Draws the overview, the page that is shown, and the pages that have something. */
function drawTabs(nav, key, current) {
  const pages = ["", current, ...(known.get(key) ?? [])];
  fill(
    nav,
    PAGES.filter(([path]) => pages.includes(path)).map(([path, title]) => {
      const here = path === current && "page";
      return element("a", { href: link(["runs", key, path].filter(Boolean)), "aria-current": here }, title);
    }),
  );
}
