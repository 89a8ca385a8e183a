/**
 * Up to eight runs beside each other: curves, configuration, held-out results, and the rollouts of the same task.
 * @module
 */

import { get } from "../api.js";
import { element, fill, svg } from "../dom.js";
import { Curve } from "../elements/curve.js";
import { choice, command, load, panel, problem, smallTable, stateBadge } from "../elements/page.js";
import { Table } from "../elements/table.js";
import { brief, counted, number, points, result, shortened, signed, visible } from "../format.js";
import { go, link } from "../router.js";
import { SMOOTHING, StepSeries } from "../series.js";

const MOST = 8;
/** Characters of a run's label in a heading. */
const MOST_LETTERS = 24;
/** Milliseconds between two requests for rollouts that the server has not found yet, and how many there are at most. */
const LOOK_AGAIN = 3000;
const LOOKS = 20;

/** @param {import("../app.js").Page} page */
export async function show(page) {
  page.title("Compare");
  const body = element("div.stack");
  page.main.append(element("div.heading", {}, element("h1", {}, "Compare runs")), body);
  const keys = [...new Set((page.query.get("runs") ?? "").split(",").filter(Boolean))];
  const picker = element("div");
  const target = element("div.stack");
  body.append(picker, target);
  load(
    picker,
    page.signal,
    () => get(["runs"], { signal: page.signal }),
    ({ runs }) => picker.append(chooser(keys, runs)),
  );
  if (keys.length > MOST)
    return target.append(problem(`At most ${MOST} runs can be compared; the address names ${keys.length}.`, null));
  if (keys.length < 2) return target.append(tooFew());
  await load(
    target,
    page.signal,
    () => get(["compare"], { query: { runs: keys.join(",") }, signal: page.signal }),
    (answer) => draw(page, target, keys, answer),
  );
}

function tooFew() {
  const list = element("a", { href: link(["runs"]) }, "list of runs");
  return element(
    "div.empty",
    {},
    element(
      "p",
      {},
      "Choose at least two runs: here, under “Add a run”, or in the ",
      list,
      ", with the boxes at the left (key x) and the button “Compare”. This command trains another one:",
    ),
    command("leyden train AGENT --tasks FILE --reward REWARD --policy POLICY --name other"),
  );
}

function chooser(keys, runs) {
  const change = (next) => go(link(["compare"], { runs: next.join(",") }));
  const names = new Map(runs.map((run) => [run.key, run.label]));
  const chosen = keys.map((key) =>
    element(
      "li",
      {},
      element(
        "button.plain",
        { type: "button", title: "Remove", onclick: () => change(keys.filter((one) => one !== key)) },
        visible(names.get(key) ?? key),
        " ×",
      ),
    ),
  );
  const rest = runs.filter((run) => !keys.includes(run.key)).map((run) => [run.key, run.label]);
  const add = choice("Add a run", [["", "…"], ...rest], "", (key) => key && change([...keys, key]));
  return element(
    "div.bar",
    {},
    keys.length ? element("ul.chosen", { "aria-label": "Chosen runs" }, chosen) : null,
    keys.length < MOST ? add : null,
  );
}

function draw(page, target, keys, answer) {
  target.append(
    ...answer.notes.map((note) => element("p.notice.warn", {}, visible(note))),
    panel("Runs", runsTable(answer)),
  );
  const curves = panel("Curves");
  const tasks = element("div");
  target.append(
    curves,
    panel("Held-out results", ...resultTables(answer)),
    tasks,
    panel("Configuration", differences(answer)),
  );
  const content = element("div.stack");
  curves.append(content);
  const request = () => Promise.all(keys.map((key) => get(["runs", key, "steps"], { signal: page.signal })));
  load(content, page.signal, request, (answers) => drawCurves(page, content, answer.runs, answers));
  if (answer.sets.length) drawTasks(page, tasks, keys, answer);
}

function runsTable({ runs, versions = [] }) {
  const rows = runs.map((run, index) => [
    element("span", {}, swatch(index), " ", element("a", { href: link(["runs", run.key]) }, visible(run.label))),
    stateBadge(run.state),
    number(run.step),
    number(run.reward),
    ...[run.held_out[0]].flatMap((one) => [
      result(one?.before, one?.is_share ?? false),
      result(one?.after, one?.is_share ?? false),
    ]),
    number(versions[index]),
  ]);
  return smallTable("Runs", ["Run", "State", ">Step", ">Reward", ">Before", ">After", ">Evaluated version"], rows);
}

function drawCurves(page, content, runs, answers) {
  const data = answers.map((answer) => {
    const one = new StepSeries();
    one.add(answer);
    return one;
  });
  const names = [...new Set(data.flatMap((one) => Object.keys(one.series)))];
  if (!names.length) return content.append(element("p.note", {}, "None of these runs has taken a step."));
  let name = names.includes(page.query.get("series") ?? "")
    ? page.query.get("series")
    : names.includes("reward")
      ? "reward"
      : names[0];
  const asked = Number(page.query.get("smooth"));
  let smoothing = SMOOTHING[asked] === undefined ? 0 : asked;
  let scope = new AbortController();
  page.signal.addEventListener("abort", () => scope.abort(), { once: true });
  const holder = element("div.big-chart");
  const renew = () => {
    scope.abort();
    scope = new AbortController();
    const steps = [...new Set(data.flatMap((one) => one.steps))].sort((a, b) => a - b);
    const curve = new Curve(
      name,
      runs.map((run) => ({ name: visible(run.label) })),
      { signal: scope.signal, sync: "compare", onZoom: (range) => curve.setZoom(range) },
    );
    curve.weight = SMOOTHING[smoothing] ?? 0;
    curve.setData(
      steps,
      data.map((one) => aligned(one, name, steps)),
    );
    fill(holder, curve.node);
  };
  const series = choice(
    "Series",
    names.map((one) => [one, one]),
    name,
    (value) => {
      name = value;
      page.remember({ series: name });
      renew();
    },
  );
  const slide = choice(
    "Smoothing",
    SMOOTHING.map((weight, index) => [String(index), String(weight)]),
    String(smoothing),
    (value) => {
      smoothing = Number(value);
      page.remember({ smooth: smoothing || null });
      renew();
    },
  );
  content.append(element("div.bar", {}, series, slide), holder);
  renew();
}

function aligned(data, name, steps) {
  const place = new Map(data.steps.map((step, index) => [step, index]));
  return steps.map((step) => data.series[name]?.[place.get(step)] ?? null);
}

/** For each held-out set, the difference of each two runs with its 95 % interval by paired bootstrap. */
function resultTables({ runs, sets }) {
  if (!sets.length) return [element("p.note", {}, "No held-out set has results task by task in two of these runs.")];
  return sets.flatMap((set) => {
    const isShare = runs.every((run) => run.held_out.find((one) => one.name === set.name)?.is_share ?? false);
    const show = isShare ? points : signed;
    const widest = Math.max(1e-9, ...set.rows.flatMap((row) => [Math.abs(row.low ?? 0), Math.abs(row.high ?? 0)]));
    const rows = set.rows.map((row) => [
      element(
        "span",
        {},
        swatch(row.b),
        " ",
        visible(runs[row.b].label),
        " − ",
        swatch(row.a),
        " ",
        visible(runs[row.a].label),
      ),
      show(row.difference),
      row.low === null ? "–" : `${show(row.low)} to ${show(row.high)}`,
      row.low === null ? "" : interval(row, widest),
      verdict(row),
      number(row.common),
    ]);
    return [
      element("h3", {}, `${visible(set.name)}, ${counted(set.tasks, "task")}`),
      smallTable(
        `Differences on ${set.name}`,
        ["Difference", ">Mean", ">95 % interval", "Around zero", "Reading", ">Common tasks"],
        rows,
      ),
    ];
  });
}

function verdict({ low, high }) {
  if (low === null || high === null) return "";
  return low > 0 || high < 0 ? "differ" : "no clear difference";
}

function interval({ difference, low, high }, widest) {
  const x = (value) => 100 + (value / widest) * 95;
  return svg(
    "svg.intervals",
    { viewBox: "0 0 200 20", "aria-hidden": "true" },
    svg("line.zero", { x1: 100, x2: 100, y1: 0, y2: 20 }),
    svg("line", { x1: x(low), x2: x(high), y1: 10, y2: 10 }),
    svg("circle", { cx: x(difference), cy: 10, r: 4 }),
  );
}

function differences({ runs, differences: rows }) {
  if (!rows.length) return element("p.note", {}, "The configurations are the same.");
  const cell = (value) => element("code", {}, brief(value ?? "–"));
  return smallTable(
    "Configuration",
    ["Setting", ...runs.map((run) => visible(run.label))],
    rows.map((row) => [element("code", {}, visible(row.key)), ...row.values.map(cell)]),
  );
}

/** The same held-out task in each run, with the first two rollouts side by side. */
function drawTasks(page, target, keys, answer) {
  const { sets } = answer;
  const holder = element("div.stack");
  const wanted = page.query.get("set") ?? "";
  const first = sets.some((set) => set.name === wanted) ? wanted : sets[0].name;
  let shown = first;
  const show = (set) => {
    shown = set;
    const request = () => get(["compare", "tasks"], { query: { runs: keys.join(","), set }, signal: page.signal });
    load(holder, page.signal, request, ({ tasks }) => {
      if (!tasks.length)
        return holder.append(element("p.note", {}, "No task of this set was evaluated by these runs."));
      const options = {
        signal: page.signal,
        sort: page.query.get("sort") ?? "",
        onSort: (sort) => page.remember({ sort }),
        open: (task) => pairLink(keys, task),
      };
      const table = new Table("Tasks", taskColumns(keys, answer.runs, tasks), options);
      holder.append(table.node);
      table.setRows(tasks);
      completeLater(
        page,
        tasks,
        request,
        () => shown === set,
        () => table.draw(),
      );
    });
  };
  const choose = choice(
    "Held-out set",
    sets.map((set) => [set.name, set.name]),
    first,
    (set) => {
      page.remember({ set });
      show(set);
    },
  );
  target.append(panel("The same task in each run", sets.length > 1 && choose, holder));
  show(first);
}

/**
 * The server finds rollouts in the background; tasks without are requested again a few times, and their rollouts
 * added.
 */
async function completeLater(page, tasks, request, isShown, onMore) {
  for (let looks = 0; looks < LOOKS && tasks.some((task) => task.rollouts.includes(null)); looks++) {
    await new Promise((resolve) => setTimeout(resolve, LOOK_AGAIN));
    if (page.signal.aborted || !isShown()) return;
    const answer = await request().catch(() => null);
    for (const [index, task] of (answer?.tasks ?? []).entries()) tasks[index].rollouts = task.rollouts;
    if (answer) onMore();
  }
}

function taskColumns(keys, runs, tasks) {
  const spread = (task) => {
    const known = task.rewards.filter((reward) => reward !== null);
    return known.length > 1 ? Math.max(...known) - Math.min(...known) : null;
  };
  return [
    {
      key: "task",
      title: "Task",
      width: 70,
      number: true,
      text: (task) => visible(String(task.task)),
      value: (task) => task.task,
    },
    ...(tasks.some((task) => task.input)
      ? [{ key: "input", title: "Input", width: 300, wide: true, text: (task) => brief(task.input) }]
      : []),
    ...runs.map((run, index) => ({
      key: `run${index}`,
      ...heading(visible(run.label)),
      number: true,
      text: (task) => number(task.rewards[index]),
      value: (task) => task.rewards[index],
      href: (task) => task.rollouts[index] && link(["runs", keys[index], "rollouts", task.rollouts[index]]),
    })),
    { key: "spread", title: "Spread", width: 80, number: true, text: (task) => number(spread(task)), value: spread },
    {
      key: "pair",
      title: "First two that have rollouts",
      width: 235,
      text: (task) => (pairLink(keys, task) ? "side by side" : ""),
      href: (task) => pairLink(keys, task),
    },
  ];
}

/** A run's label as a heading, and the width of its column. */
function heading(label) {
  const title = shortened(label, MOST_LETTERS);
  return { title, width: Math.max(110, 36 + 9 * title.length) };
}

function pairLink(keys, task) {
  const [a, b] = task.rollouts.map((id, index) => id && `${keys[index]}/${id}`).filter(Boolean);
  return a && b ? link(["compare", "rollouts"], { a, b }) : null;
}

function swatch(index) {
  const node = element("span.swatch");
  node.style.display = "inline-block";
  node.style.background = `var(--series-${index % MOST})`;
  return node;
}
