/**
 * Health of a run. What is not alive comes first; advice on training is given only when everything is.
 * @module
 */

import { get } from "../api.js";
import { element, fill } from "../dom.js";
import { badge, command, load, panel, problem } from "../elements/page.js";
import { moment, number, visible } from "../format.js";
import { link } from "../router.js";
import { runFrame } from "./run_frame.js";

/** Seconds after which the page is requested again, because silence, too, is a sign. */
const EVERY = 5;

const TONES = { alarm: "bad", warning: "warn", ok: "good", unknown: "plain" };
const ORDER = ["alarm", "warning", "unknown", "ok"];

/** @param {import("../app.js").Page} page */
export async function show(page) {
  const { key } = page.parameters;
  runFrame(page, "health", [["Health", null]], (run, body) => {
    const target = element("div.stack");
    body.append(target);
    const request = () => get(["runs", key, "health"], { signal: page.signal });
    let shown = "";
    const draw = (health) => {
      const text = JSON.stringify(health);
      if (text === shown) return;
      shown = text;
      fill(target, content(run, health));
    };
    load(target, page.signal, request, draw);
    const timer = setInterval(
      () => document.hidden || request().then(draw, (error) => fail(page, target, error, () => (shown = ""))),
      EVERY * 1000,
    );
    page.signal.addEventListener("abort", () => clearInterval(timer), { once: true });
  });
}

/** Status of errors that the frame of all pages of a run shows: no answer, another token, and a run that is gone. */
const SHOWN_ABOVE = [0, 403, 404];

function fail(page, target, error, forget) {
  if (page.signal.aborted || SHOWN_ABOVE.includes(error.status)) return;
  forget();
  fill(target, problem(error.message, null));
}

function content(run, { liveness, alerts, signals }) {
  const alive = liveness.every((one) => one.level !== "alarm");
  return [
    panel("Is it alive?", ...worstFirst(liveness).map(livenessLine)),
    !alive &&
      element(
        "p.notice.bad",
        { role: "status" },
        "Something above is not alive. Advice on training follows when that is repaired.",
      ),
    panel(
      "Signals of training",
      ...worstFirst(signals).map((one) => signalLine(run, one, alive)),
      signals.length === 0 && element("p.note", {}, "No step has been taken, so there is nothing to judge."),
    ),
    panel(
      "Alerts",
      ...alerts.map((one) => alertLine(run, one, alive)),
      alerts.length === 0 && element("p.note", {}, "None was raised."),
    ),
    run.state !== "running" &&
      run.commands.length > 0 &&
      panel(
        "Commands",
        ...run.commands.map((one) => element("div", {}, element("p.note", {}, one.what), command(one.command))),
      ),
  ].filter(Boolean);
}

function livenessLine(one) {
  const since = one.since === null ? "" : `, since ${moment(one.since)}`;
  return line(one.level, one.name, one.message + since);
}

function signalLine(run, one, alive) {
  const curve = one.series && element("a", { href: link(["runs", run.key], { text: one.series }) }, "curve");
  const advice =
    alive && one.level !== "ok" && one.advice ? element("p.note", {}, `What to do: ${visible(one.advice)}`) : null;
  return line(one.level, one.name, one.text ?? number(one.value), curve, advice);
}

function alertLine(run, one, alive) {
  const active = one.until === null;
  const when = active ? `since step ${one.since}` : `steps ${one.since} to ${one.until}`;
  const step = element("a", { href: link(["runs", run.key], { step: one.since }) }, when);
  const advice = alive && active && one.advice ? element("p.note", {}, `What to do: ${visible(one.advice)}`) : null;
  return line(active ? "warning" : "ok", one.name, one.message, step, advice, active ? "active" : "over");
}

function line(level, name, text, more, advice, word = level) {
  return element(
    "div.signal",
    {},
    badge(word, TONES[level] ?? "plain"),
    element("div", {}, element("h3", {}, visible(name)), element("p", {}, visible(text), more && " · ", more), advice),
  );
}

function worstFirst(lines) {
  return [...lines].sort((a, b) => ORDER.indexOf(a.level) - ORDER.indexOf(b.level));
}
