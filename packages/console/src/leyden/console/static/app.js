/**
 * Starts the console: finds the view of the address, shows it, and ends it when the reader leaves.
 * @module
 */

import { actionsAllowed, get } from "./api.js";
import { element, fill, setText } from "./dom.js";
import { problem } from "./elements/page.js";
import { startKeys } from "./keys.js";
import { match, parse, remember } from "./router.js";
import { nextTheme } from "./theme.js";

/**
 * What a view gets. It draws into `main`, requests with `signal`, and stops everything of its own when `signal` is
 * aborted.
 * @typedef {object} Page
 * @property {HTMLElement} main empty
 * @property {Record<string, string>} parameters of its route
 * @property {URLSearchParams} query of the address when the view began
 * @property {AbortSignal} signal aborted when the reader leaves
 * @property {(changes: import("./router.js").Query) => void} remember writes filters and selections into the address
 * @property {(text: string) => void} title names the page in the browser's tab
 * @property {(text: string) => void} say tells readers of a screen reader about an update
 */

/**
 * A view is `show(page)`; modules are loaded when they are first needed.
 * @type {[string[], () => Promise<{show: (page: Page) => Promise<void>}>][]}
 */
const VIEWS = [
  [["runs"], () => import("./views/runs.js")],
  [["runs", ":key"], () => import("./views/run.js")],
  [["runs", ":key", "steps", ":step"], () => import("./views/step.js")],
  [["runs", ":key", "rollouts"], () => import("./views/rollouts.js")],
  [["runs", ":key", "rollouts", ":rollout"], () => import("./views/rollout.js")],
  [["runs", ":key", "rollouts", ":rollout", "calls", ":span"], () => import("./views/call.js")],
  [["runs", ":key", "versions"], () => import("./views/versions.js")],
  [["runs", ":key", "chat"], () => import("./views/actions/chat.js")],
  [["runs", ":key", "prompts"], () => import("./views/prompts.js")],
  [["runs", ":key", "try"], () => import("./views/actions/try.js")],
  [["runs", ":key", "health"], () => import("./views/health.js")],
  [["runs", ":key", "bottlenecks"], () => import("./views/bottlenecks.js")],
  [["runs", ":key", "reward"], () => import("./views/actions/reward.js")],
  [["runs", ":key", "suggestions"], () => import("./views/actions/suggestions.js")],
  [["studies"], () => import("./views/studies.js")],
  [["studies", ":key"], () => import("./views/study.js")],
  [["compare"], () => import("./views/compare.js")],
  [["compare", "rollouts"], () => import("./views/pair.js")],
  [["runs", ":key", "launch"], () => import("./views/actions/launch.js")],
  [["jobs"], () => import("./views/actions/jobs.js")],
  [["jobs", ":job"], () => import("./views/actions/job.js")],
];

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const status = /** @type {HTMLElement} */ (document.getElementById("status"));

let leaving = new AbortController();

async function route() {
  leaving.abort(new DOMException("The reader left the view.", "AbortError"));
  leaving = new AbortController();
  const { signal } = leaving;
  const { path, query } = parse(location.hash);
  for (const link of document.querySelectorAll("[data-section]")) mark(link, path[0]);
  fill(main);
  const found = VIEWS.map(([pattern, load]) => ({ parameters: match(pattern, path), load })).find(
    (one) => one.parameters,
  );
  if (!found) {
    title("No such page");
    return fill(main, element("h1", {}, "No such page"), problem("There is no such page.", null));
  }
  let view;
  try {
    view = await found.load();
  } catch (error) {
    return notLoaded(error, signal);
  }
  if (signal.aborted) return;
  try {
    await view.show({ main, parameters: found.parameters, query, signal, remember, title, say });
  } catch (error) {
    if (signal.aborted) return;
    console.error(error);
    fill(main, problem(`This page failed: ${error.message}`, route));
  }
}

/**
 * Says why the module of a view was not loaded. A browser does not request such a module again, so that only loading
 * the whole page helps; that is done when the server answers, since without it the window would be empty.
 */
async function notLoaded(error, signal) {
  const why = await get(["console"], { signal }).then(
    () => `This page was not loaded: ${error.message}`,
    (reason) => reason.message,
  );
  if (signal.aborted) return;
  const retry = () => get(["console"], { signal }).then(() => location.reload(), () => notLoaded(error, signal));
  fill(main, problem(why, retry));
}

/** The list of jobs has a link only if there can be some. */
async function showActions() {
  const isAllowed = await actionsAllowed().catch(() => false);
  const jobs = document.querySelector('[data-section="jobs"]');
  if (jobs instanceof HTMLElement) jobs.hidden = !isAllowed;
}

function mark(link, section) {
  if (link.dataset.section === section) link.setAttribute("aria-current", "page");
  else link.removeAttribute("aria-current");
}

function title(text) {
  document.title = `${text} · Leyden`;
}

function say(text) {
  setText(status, text);
}

window.addEventListener("hashchange", () => {
  route();
  window.scrollTo(0, 0);
  main.focus({ preventScroll: true });
});
document.getElementById("theme")?.addEventListener("click", nextTheme);
document.getElementById("skip")?.addEventListener("click", () => main.focus());
startKeys();
showActions();
route();
