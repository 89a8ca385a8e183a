/**
 * All runs: filter, open, and choose some to compare.
 * @module
 */

import { get } from "../api.js";
import { element, fill } from "../dom.js";
import { choice, empty, load, refreshed, STATES } from "../elements/page.js";
import { Table } from "../elements/table.js";
import { counted, duration, moment, number, result, visible } from "../format.js";
import { go, link, parse } from "../router.js";

/** Seconds after which the list is requested again while the page is in sight. */
const EVERY = 5;
/** The most runs that can be compared. */
const MOST = 8;
const FILTERS = ["text", "experiment", "tag", "state"];

/** @param {import("../app.js").Page} page */
export async function show(page) {
  page.title("Runs");
  const body = element("div.stack");
  page.main.append(element("div.heading", {}, element("h1", {}, "Runs")), body);
  await load(
    body,
    page.signal,
    () => get(["runs"], { signal: page.signal }),
    (answer) => draw(page, body, answer),
  );
}

function draw(page, body, answer) {
  const filters = Object.fromEntries(FILTERS.map((name) => [name, page.query.get(name) ?? ""]));
  let { runs } = answer;
  /** Keys of the chosen runs. One that is not in the list, such as that of a store that does not answer, stays. */
  const chosen = new Set((page.query.get("chosen") ?? "").split(",").filter(Boolean).slice(0, MOST));
  const listed = () => runs.map((run) => run.key).filter((key) => chosen.has(key));
  const open = () => go(link(["compare"], { runs: [...chosen].filter((key) => listed().includes(key)).join(",") }));
  const compare = element(
    "button",
    { type: "button", "data-compare": true, disabled: true, onclick: open },
    "Compare",
  );
  const check = (run, checked) => {
    if (checked && chosen.size < MOST) chosen.add(run.key);
    else chosen.delete(run.key);
    page.remember({ chosen: [...chosen].join(",") });
    drawChosen();
    table.draw();
  };
  const drawChosen = () => {
    const count = listed().length;
    compare.disabled = count < 2;
    compare.textContent = count ? `Compare ${count}` : "Compare";
  };
  const columns = runColumns(chosen, check);
  const table = new Table("Runs", columns, {
    signal: page.signal,
    open: (run) => link(["runs", run.key]),
    sort: page.query.get("sort") ?? "",
    onSort: (sort) => page.remember({ sort }),
  });
  const count = element("p.note", { role: "status" });
  const problems = element("div.stack");
  const clear = element("button.plain", { type: "button", onclick: () => go(link(["runs"], withoutFilters())) }, "Clear filters");
  const apply = () => {
    page.remember(filters);
    clear.hidden = FILTERS.every((name) => !filters[name]);
    drawChosen();
    const kept = runs.filter((run) => matches(run, filters));
    table.setRows(kept);
    count.textContent =
      kept.length === runs.length
        ? counted(runs.length, "run")
        : `${number(kept.length)} of ${counted(runs.length, "run")}`;
  };
  const filterBar = element("div.bar", { role: "search" }, fields(filters, runs, apply), clear, compare);
  const drawProblems = (list) =>
    fill(
      problems,
      list.map((one) => element("p.notice.warn", {}, visible(`${one.where}: ${one.error}`))),
    );
  drawProblems(answer.problems);
  const request = () => get(["runs"], { signal: page.signal });
  body.append(
    refreshed(page.signal, EVERY, request, (next) => {
      if (!runs.length && next.runs.length) return location.reload();
      runs = keepHandles(runs, next.runs);
      drawProblems(next.problems);
      apply();
    }),
  );
  if (runs.length) body.append(problems, filterBar, count, table.node);
  else
    body.append(
      problems,
      empty(
        "There are no runs yet. This command trains the first one:",
        "leyden train AGENT --tasks FILE --reward REWARD --policy POLICY --name mine",
      ),
    );
  apply();
}

/** The same objects for the same runs, so that the table keeps its selection. */
function keepHandles(runs, next) {
  const known = new Map(runs.map((run) => [run.key, run]));
  return next.map((run) => Object.assign(known.get(run.key) ?? {}, run));
}

function fields(filters, runs, apply) {
  const names = (values) => [...new Set(values.filter(Boolean))].sort().map((name) => [name, name]);
  const select = (label, name, values) => {
    const options = [["", "all"], ...names(values)];
    const value = filters[name];
    if (!options.some(([one]) => one === value)) options.push([value, `${value} (0)`]);
    return choice(label, options, value, (next) => {
      filters[name] = next;
      apply();
    });
  };
  const text = element("input", { type: "search", value: filters.text, placeholder: "name, policy, agent …" });
  text.addEventListener("input", () => {
    filters.text = text.value;
    apply();
  });
  return [
    element("label.field", {}, element("span", {}, "Search"), text),
    select(
      "Experiment",
      "experiment",
      runs.map((run) => run.experiment),
    ),
    select(
      "Tag",
      "tag",
      runs.flatMap((run) => run.tags),
    ),
    select(
      "State",
      "state",
      runs.map((run) => run.state),
    ),
  ];
}

/** The rest of the address: order and chosen runs. */
function withoutFilters() {
  const { query } = parse(location.hash);
  return Object.fromEntries([...query].filter(([name]) => !FILTERS.includes(name)));
}

function matches(run, { text, experiment, tag, state }) {
  if (experiment && run.experiment !== experiment) return false;
  if (tag && !run.tags.includes(tag)) return false;
  if (state && run.state !== state) return false;
  const all = [run.label, run.experiment, run.algorithm, run.policy, run.agent, run.endpoint, run.error, ...run.tags]
    .join("\n")
    .toLowerCase();
  return text
    .toLowerCase()
    .split(/\s+/)
    .every((word) => all.includes(word));
}

function runColumns(chosen, check) {
  const raised = (run) => run.alerts.filter((alert) => alert.until === null);
  const heldOut = (run, when) => run.held_out[0]?.[when] ?? null;
  return [
    {
      key: "compare",
      title: "Chosen to compare",
      width: 34,
      text: (run) => `Compare ${run.label}`,
      onCheck: check,
      checked: (run) => chosen.has(run.key),
    },
    {
      key: "name",
      title: "Run",
      width: 140,
      middle: true,
      text: (run) => visible(run.label),
      value: (run) => run.label,
      href: (run) => link(["runs", run.key]),
    },
    {
      key: "state",
      title: "State",
      width: 96,
      text: (run) => run.state,
      value: (run) => run.state,
      tone: (run) => STATES[run.state] ?? "",
    },
    {
      key: "error",
      title: "Why it ended",
      width: 122,
      wide: true,
      rest: true,
      text: (run) => visible(run.error ?? ""),
      tone: (run) => STATES[run.state] ?? "",
    },
    {
      key: "alerts",
      title: "Alerts",
      width: 83,
      text: (run) =>
        raised(run)
          .map((alert) => `⚠ ${visible(alert.name)}`)
          .join(", "),
      value: (run) => raised(run).length,
      tone: () => "warn",
    },
    {
      key: "step",
      title: "Step",
      width: 80,
      number: true,
      wide: true,
      text: (run) => (run.steps ? `${number(run.step)} / ${number(run.steps)}` : number(run.step)),
      value: (run) => run.step,
    },
    {
      key: "reward",
      title: "Reward",
      width: 75,
      number: true,
      text: (run) => number(run.reward),
      value: (run) => run.reward,
    },
    {
      key: "before",
      title: "Before",
      width: 75,
      number: true,
      wide: true,
      text: (run) => result(heldOut(run, "before"), run.held_out[0]?.is_share),
      value: (run) => heldOut(run, "before"),
    },
    {
      key: "after",
      title: "After",
      width: 78,
      number: true,
      text: (run) => result(heldOut(run, "after"), run.held_out[0]?.is_share ?? false),
      value: (run) => heldOut(run, "after"),
    },
    {
      key: "experiment",
      title: "Experiment",
      width: 107,
      wide: true,
      text: (run) => visible(run.experiment ?? ""),
      value: (run) => run.experiment,
    },
    {
      key: "algorithm",
      title: "Algorithm",
      width: 95,
      wide: true,
      text: (run) => visible(run.algorithm ?? ""),
      value: (run) => run.algorithm,
    },
    {
      key: "seconds",
      title: "Duration",
      width: 95,
      number: true,
      wide: true,
      text: (run) => duration(run.seconds),
      value: (run) => run.seconds,
    },
    {
      key: "updated",
      title: "Last written",
      width: 143,
      wide: true,
      text: (run) => moment(run.updated),
      value: (run) => run.updated,
    },
  ];
}
