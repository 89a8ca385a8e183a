/**
 * The keyboard: one table of keys, and the dialog that lists them.
 *
 * Lists (tables, trees, token strips) do not listen for keys themselves. The main list of a page has the attribute
 * `data-list`
 * and gets the events `list:move` (detail: rows to move by), `list:open` and `list:check`.
 * @module
 */

import { element } from "./dom.js";
import { go, link, parse } from "./router.js";
import { nextTheme } from "./theme.js";

/** Pages of a run that `g` and a letter lead to. */
const RUN_PAGES = {
  o: "",
  l: "rollouts",
  v: "versions",
  a: "chat",
  p: "prompts",
  w: "reward",
  y: "try",
  h: "health",
  b: "bottlenecks",
};

const LISTED = [
  ["j k", "move down and up in the list"],
  ["Enter", "open the selected row"],
  ["x", "choose the selected run to compare, or do not"],
  ["/", "search"],
  ["Esc", "close a dialog, leave a field, or go up one page"],
  ["← →", "previous and next token; close and open a branch"],
  ["Space", "play or pause a rollout"],
  ["g r", "runs"],
  ["g c", "compare the chosen runs"],
  ["g o", "overview of the run"],
  ["g l", "its rollouts"],
  ["g v", "its versions"],
  ["g a", "chat with a version"],
  ["g p", "its prompts"],
  ["g w", "its reward"],
  ["g y", "try two of its prompts or versions"],
  ["g h", "its health"],
  ["g b", "its bottlenecks"],
  ["t", "light, dark, or as the system"],
  ["?", "this list"],
];

/** Milliseconds in which the second key after `g` must come. */
const CHORD = 1200;

let goPressed = 0;

/** Starts to listen. */
export function startKeys() {
  const dialog = helpDialog();
  document.body.append(dialog);
  document.getElementById("help")?.addEventListener("click", () => dialog.showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    const done = typing(event.target) ? leaveField(event) : press(event, dialog);
    if (done) event.preventDefault();
  });
}

function press(event, dialog) {
  const chord = Date.now() - goPressed < CHORD;
  goPressed = 0;
  if (chord && goTo(event.key)) return true;
  switch (event.key) {
    case "g":
      goPressed = Date.now();
      return true;
    case "j":
      return move(1);
    case "k":
      return move(-1);
    case "Enter":
      return event.target.closest("a, button, summary, [role=button]") === null && send("list:open", null);
    case "x":
      return send("list:check", null);
    case "/":
      return search();
    case "?":
      dialog.showModal();
      return true;
    case "t":
      nextTheme();
      return true;
    case "Escape":
      return up();
    default:
      return false;
  }
}

/** The list that has the focus, else the page's first. */
function list() {
  return document.activeElement?.closest("[data-list]") ?? document.querySelector("main [data-list]");
}

function move(by) {
  return send("list:move", by);
}

function send(name, detail) {
  const target = list();
  target?.dispatchEvent(new CustomEvent(name, { detail }));
  return target !== null;
}

function search() {
  const field = document.querySelector("main input[type=search]");
  if (!(field instanceof HTMLInputElement)) return false;
  field.focus();
  field.select();
  return true;
}

function up() {
  const { path } = parse(location.hash);
  if (path.length < 2) return false;
  const rollout = path[0] === "runs" && path.includes("calls");
  go(link(path.slice(0, rollout ? 4 : path.length === 4 ? 3 : path.length - 1)));
  return true;
}

function goTo(key) {
  if (key === "r" || key === "c") {
    const chosen = key === "c" && document.querySelector("main [data-compare]:enabled");
    if (chosen instanceof HTMLElement) chosen.click();
    else go(key === "r" ? "#/runs" : "#/compare");
    return true;
  }
  const { path } = parse(location.hash);
  const page = RUN_PAGES[key];
  if (page === undefined || path[0] !== "runs" || path.length < 2) return false;
  go(link(["runs", path[1], page].filter(Boolean)));
  return true;
}

function typing(target) {
  return (
    target instanceof Element &&
    target.matches("input:not([type=checkbox]):not([type=range]):not([type=radio]), select, textarea")
  );
}

function leaveField(event) {
  if (event.key !== "Escape") return false;
  event.target.blur();
  return true;
}

function helpDialog() {
  const keys = LISTED.map(([key, does]) => [
    element("dt", {}, ...key.split(" ").map((one) => element("kbd", {}, one))),
    element("dd", {}, does),
  ]);
  return element(
    "dialog",
    { "aria-labelledby": "keys-title" },
    element("h2", { id: "keys-title" }, "Keys"),
    element("dl.keys", {}, keys.flat()),
    element("form", { method: "dialog" }, element("button", {}, "Close")),
  );
}
