/**
 * The prompts that a run tried: candidates as a tree, each with its difference from its parent.
 * @module
 */

import { get } from "../api.js";
import { element, fill } from "../dom.js";
import { differences } from "../elements/diff.js";
import { badge, choice, command, empty, facts, fold, load, panel } from "../elements/page.js";
import { Tree } from "../elements/tree.js";
import { number, shellWord, visible } from "../format.js";
import { inCommands, inTheFolder, offerRefresh, runFrame } from "./run_frame.js";

/** @param {import("../app.js").Page} page */
export async function show(page) {
  const { key } = page.parameters;
  const frame = runFrame(page, "prompts", [["Prompts", null]], (run, body) => {
    const target = element("div.stack");
    body.append(target);
    load(
      target,
      page.signal,
      () => get(["runs", key, "prompts"], { signal: page.signal }),
      (answer) => draw(page, run, target, answer),
    );
  });
  offerRefresh(frame);
}

function draw(page, run, target, answer) {
  const { candidates, versions } = answer;
  if (candidates.length) drawCandidates(page, run, target, answer);
  if (versions.length) target.append(panel("Prompts of the versions", ...versions.map(versionPrompts)));
  if (!candidates.length && !versions.length && run.folder === null)
    target.append(inTheFolder(run, "Prompts are"));
  else if (!candidates.length && !versions.length) {
    target.append(
      empty(
        "This run trains no prompts. This command trains an agent's prompts:",
        "leyden train AGENT --tasks FILE --reward REWARD --algorithm gepa --prompts prompts.yaml",
      ),
    );
  }
}

function drawCandidates(page, run, target, { candidates, best }) {
  const details = element("section.panel", { "aria-label": "The chosen candidate" });
  const byNumber = new Map(candidates.map((one) => [String(one.number), one]));
  const choose = (id) => {
    page.remember({ candidate: id });
    fill(details, candidateDetails(run, byNumber, byNumber.get(id), page));
  };
  const tree = new Tree("Candidates", roots(candidates, best), choose);
  target.append(element("div.side", {}, panel("Candidates", tree.node), details));
  const wanted = page.query.get("candidate") ?? String(best ?? candidates[0].number);
  const first = byNumber.has(wanted) ? wanted : String(candidates[0].number);
  tree.select(first);
  choose(first);
}

/** A candidate of several parents stands below the first of them. */
function roots(candidates, best) {
  const branches = new Map(
    candidates.map((one) => [one.number, { id: String(one.number), label: label(one, best), children: [] }]),
  );
  const found = [];
  for (const one of candidates) {
    const branch = branches.get(one.number);
    const parent = one.parents.map((number) => branches.get(number)).find((other) => other && other !== branch);
    (parent?.children ?? found).push(branch);
  }
  return found;
}

function label(one, best) {
  return [
    element("span.tree-kind", {}, `candidate ${number(one.number)}`),
    one.number === best && badge("best", "good"),
    one.kept && badge("kept"),
    element("span.tree-end", {}, number(one.score)),
  ];
}

function candidateDetails(run, byNumber, one, page) {
  const parents = one.parents.filter((parent) => byNumber.has(String(parent)));
  const content = element("div.stack");
  const against = (value) => fill(content, differences(value === "" ? null : byNumber.get(value).texts, one.texts));
  const chosen = page.query.get("against") ?? String(parents[0] ?? "");
  const options = [
    ["", "nothing: the whole text"],
    ...[...byNumber.keys()]
      .filter((other) => other !== String(one.number))
      .map((other) => [other, parents.includes(Number(other)) ? `candidate ${other} (parent)` : `candidate ${other}`]),
  ];
  const start = options.some(([value]) => value === chosen) ? chosen : "";
  against(start);
  const remember = (value) => {
    page.remember({ against: value });
    against(value);
  };
  return [
    element("h2", {}, `Candidate ${number(one.number)}`),
    one.why && element("p", {}, visible(one.why)),
    facts([
      ["Score", number(one.score)],
      ["Step", number(one.step)],
      ["Made from", one.parents.map(number).join(", ") || "the agent's own prompts"],
      ["Kept", one.kept ? "yes" : "no"],
    ]),
    choice("Difference from", options, start, remember),
    content,
    element("h3", {}, "All of it in the terminal"),
    command(`leyden prompts tree ${shellWord(inCommands(run).name)} --candidate ${one.number}${inCommands(run).where}`),
  ];
}

function versionPrompts({ version, texts: own }) {
  return fold(`Version ${number(version)}`, (body) => body.append(...differences(null, own)));
}
