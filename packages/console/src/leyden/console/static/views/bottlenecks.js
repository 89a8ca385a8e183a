/**
 * Where a run's seconds go, and what that suggests.
 * @module
 */

import { get } from "../api.js";
import { element } from "../dom.js";
import { Curve } from "../elements/curve.js";
import { load, panel } from "../elements/page.js";
import { shares } from "../elements/shares.js";
import { counted, duration, visible } from "../format.js";
import { go, link } from "../router.js";
import { inTheFolder, missing, nothingOf, offerRefresh, runFrame } from "./run_frame.js";

/** @param {import("../app.js").Page} page */
export async function show(page) {
  const { key } = page.parameters;
  const frame = runFrame(page, "bottlenecks", [["Bottlenecks", null]], (run, body) => {
    const target = element("div.stack");
    body.append(target);
    load(
      target,
      page.signal,
      () => get(["runs", key, "bottlenecks"], { signal: page.signal }),
      (answer) => draw(page, run, target, answer),
    );
  });
  offerRefresh(frame);
}

function draw(page, run, target, answer) {
  const { phases, steps, inside, findings, sampled } = answer;
  if (!phases.length && !steps.steps.length)
    return target.append(
      nothingOf(run, "This run has measured no time", "It does so with its first step:"),
    );
  const found = findings.map((one) =>
    element(
      "li",
      {},
      visible(one.text),
      one.figure && !one.text.includes(one.figure) ? ` (${visible(one.figure)})` : "",
    ),
  );
  target.append(
    panel("Findings", found.length ? element("ul", {}, found) : element("p.note", {}, "Nothing stands out.")),
    element(
      "div.columns",
      {},
      panel(
        "Phases of the run",
        phases.length ? shares("Seconds of each phase", phases) : inTheFolder(run, "Their seconds are"),
      ),
      panel(
        "Inside a rollout",
        inside.length ? shares("Seconds inside rollouts", inside) : element("p.note", {}, missing(run, "Not known")),
        element("p.note", {}, `From ${counted(sampled, "rollout")}.`),
      ),
    ),
    ...utilisation(page, run, steps),
  );
}

/** A chart a lane, with one cursor: how long each part took in each step. */
function utilisation(page, run, { steps, series }) {
  const names = Object.keys(series);
  if (!steps.length || !names.length) return [];
  const top = Object.values(series)
    .flat()
    .reduce((highest, value) => Math.max(highest, value ?? 0), 0.001);
  const charts = names.map((name) => {
    const curve = new Curve(name, [{ name: "seconds" }], {
      signal: page.signal,
      sync: `${run.key}/bottlenecks`,
      format: duration,
      top,
      onPick: (step) => go(link(["runs", run.key], { step })),
      onZoom: (range) => charts.forEach((one) => one.setZoom(range)),
    });
    curve.setData(steps, [series[name]]);
    return curve;
  });
  return [
    element("h2", {}, "Seconds of each step"),
    element(
      "div.charts",
      {},
      charts.map((one) => one.node),
    ),
  ];
}
