/**
 * The versions of a run's policy: which came from which, how good each is, which is kept, and the commands to use them.
 * @module
 */

import { actionsAllowed } from "../api.js";
import { element, fill } from "../dom.js";
import { action } from "../elements/action.js";
import { badge, command, facts, panel, smallTable } from "../elements/page.js";
import { Tree } from "../elements/tree.js";
import { moment, number, percent, result, shellWord, visible } from "../format.js";
import { redraw } from "../router.js";
import { inCommands, inTheFolder, nothingOf, offerRefresh, runFrame } from "./run_frame.js";

/** @param {import("../app.js").Page} page */
export async function show(page) {
  const frame = runFrame(page, "versions", [["Versions", null]], (run, body) => {
    if (!run.versions.length)
      return body.append(nothingOf(run, "This run has no version", "Each step of a run makes one:"));
    draw(page, run, body);
  });
  offerRefresh(frame);
}

function draw(page, run, body) {
  const details = element("section.panel", { "aria-label": "The chosen version", "aria-live": "polite" });
  const byNumber = new Map(run.versions.map((one) => [String(one.version), one]));
  const show = (id) => {
    const actions = element("div.stack");
    fill(details, versionDetails(run, byNumber.get(id)), actions);
    drawActions(page, run, byNumber.get(id), actions);
  };
  const choose = (id) => {
    page.remember({ version: id });
    show(id);
  };
  const tree = new Tree("Versions", lineage(run), choose);
  const kept = run.versions.find((one) => one.kept) ?? run.versions[run.versions.length - 1];
  const first = byNumber.has(page.query.get("version") ?? "") ? page.query.get("version") : String(kept.version);
  tree.select(first);
  show(first);
  body.append(element("div.side", {}, panel("Lineage", tree.node), details));
  requestAnimationFrame(() => tree.select(first));
}

/**
 * A version that directly follows another is drawn below it at the same depth; only a second child is indented,
 * because a run of
 * a thousand steps would otherwise leave the screen.
 */
function lineage(run) {
  const known = new Set(run.versions.map((one) => one.version));
  const children = new Map();
  for (const one of run.versions) {
    const parent = known.has(one.parent) && one.parent !== one.version ? one.parent : null;
    children.set(parent, [...(children.get(parent) ?? []), one]);
  }
  const follow = (first) => {
    const branches = [];
    let one = first;
    while (one) {
      const [next, ...others] = children.get(one.version) ?? [];
      branches.push({
        id: String(one.version),
        label: label(run, one),
        tone: one.kept ? "kept" : "",
        children: others.flatMap(follow),
      });
      one = next;
    }
    return branches;
  };
  return (children.get(null) ?? []).flatMap(follow);
}

function label(run, one) {
  return [
    element("span.tree-kind", {}, `version ${number(one.version)}`),
    one.kept && badge("kept", "good"),
    one.has_weights ? badge(run.policy ? "weights" : "checkpoint") : null,
    element("span.tree-end", {}, results(run, one.held_out)),
  ];
}

function results(run, heldOut) {
  return Object.entries(heldOut ?? {})
    .map(([name, value]) => `${visible(name)} ${inUnits(run, name, value)}`)
    .join(", ");
}

function versionDetails(run, one) {
  const sets = [...new Set([...Object.keys(one.held_out ?? {}), ...Object.keys(one.sampled ?? {})])];
  const rows = sets.map((name) => [
    visible(name),
    inUnits(run, name, one.held_out?.[name]),
    inUnits(run, name, one.sampled?.[name]),
  ]);
  return [
    element("h2", {}, `Version ${number(one.version)}`),
    one.kept && element("p", {}, badge("kept", "good"), one.why ? ` ${visible(one.why)}` : ""),
    facts([
      ["Made from", one.parent === null ? "the beginning" : `version ${number(one.parent)}`],
      ["Created", moment(one.created)],
      [run.policy ? "Weights" : "Checkpoint", one.has_weights ? "on disk" : "no longer on disk"],
    ]),
    rows.length
      ? smallTable("Held-out results", ["Held-out set", ">With the agent's settings", ">Sampled"], rows)
      : element("p.note", {}, "It was not evaluated."),
    ...commandsOf(run, one),
  ];
}

/** What the console can do with a version, if it is allowed to. */
async function drawActions(page, run, one, target) {
  if (run.folder === null || !(await actionsAllowed())) return;
  const { signal } = page;
  const of = (name) => () => ["runs", page.parameters.key, name];
  const at = one.version;
  const onEnd = (job) => job.state === "finished" && redraw();
  const version = () => ({ version: at });
  const folder = element("input", { type: "text", value: `${inCommands(run).name}-${at}`, spellcheck: "false" });
  const isFinished = run.report !== null;
  const hasWeights = one.has_weights || at === 0;
  const forPromotion = `Keep version ${at} of this run? Its policy folder then holds this version.`;
  const forRollback = `Take the run back to version ${at}? What came later is moved aside.`;
  fill(
    target,
    element("h3", {}, "Actions"),
    isFinished &&
      hasWeights &&
      !one.kept &&
      action("Promote", { path: of("promote"), body: version, question: forPromotion, signal, onEnd }),
    one.has_weights &&
      action("Roll back", { path: of("rollback"), body: version, question: forRollback, signal, onEnd }),
    hasWeights &&
      element("label.field", {}, element("span", {}, "Folder to export to"), folder),
    hasWeights &&
      action("Export", { path: of("export"), body: () => ({ version: at, folder: folder.value.trim() }), signal }),
  );
}

/** The commands that use a version. */
function commandsOf(run, one) {
  if (run.folder === null)
    return [inTheFolder(run, "Its weights are")];
  const { name, where } = inCommands(run);
  const at = shellWord(`${name}:${one.version}`);
  const first = shellWord(`${name}:${run.versions[0].version}`);
  const commands = [
    ["Its numbers", `leyden models show ${at}${where}`],
    ["Compare it with the first version", `leyden models compare ${first} ${at}${where}`],
    ...(one.has_weights
      ? [
          ["Write its policy to a folder", `leyden models export ${shellWord(name)} ${one.version} FOLDER${where}`],
          ["Take the run back to it", `leyden models rollback ${shellWord(name)} ${one.version}${where}`],
        ]
      : []),
  ];
  return commands.flatMap(([title, text]) => [element("h3", {}, title), command(text)]);
}

function inUnits(run, name, value) {
  const set = run.held_out.find((one) => one.name === name);
  return set ? result(value ?? null, set.is_share) : percent(value ?? null);
}
