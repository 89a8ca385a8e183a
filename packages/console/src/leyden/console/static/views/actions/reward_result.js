/**
 * What another reward would change: control, errors, distributions, order, groups, advantages, and the rollouts.
 * @module
 */

import { get } from "../../api.js";
import { element, fill, setText } from "../../dom.js";
import { distribution } from "../../elements/distribution.js";
import { choice, facts, fold, panel, problem, smallTable } from "../../elements/page.js";
import { Table } from "../../elements/table.js";
import { brief, counted, number, percent, signed, visible } from "../../format.js";
import { link } from "../../router.js";

/** Rollouts of one request. */
const PAGE = 200;
/** Groups that are shown without a click. */
const OPEN_GROUPS = 8;

const ORDERS = [
  ["rank", "largest change of rank"],
  ["raised", "largest gain of reward"],
  ["lowered", "largest loss of reward"],
  ["advantage", "largest change of advantage"],
  ["errors", "no new reward"],
  ["all", "all, as stored"],
];

/**
 * @param {string} key of the run
 * @param {any} found the summary of the result
 * @param {import("../../app.js").Page} page
 * @returns {HTMLElement[]}
 */
export function rewardResult(key, found, page) {
  return [
    element("div.columns", {}, control(key, found), order(found)),
    panel("Reward before and after", found.distribution ? distribution("Reward", found.distribution) : none()),
    ...Object.entries(found.dimensions).map(([name, one]) =>
      fold(`Dimension ${visible(name)}`, (body) => body.append(distribution(visible(name), one))),
    ),
    groups(key, found.groups),
    advantages(found.advantages),
    rollouts(key, found, page),
  ];
}

function none() {
  return element("p.note", {}, "No rollout has both rewards.");
}

function control(key, found) {
  const { control: own } = found;
  const weights = Object.entries(found.reward_weights).map(([name, weight]) => `${name} = ${number(weight)}`);
  const remark = controlRemark(own);
  const scored = `${number(found.scored)} of ${counted(found.read, "rollout")} scored`;
  return panel(
    "Scored, and control",
    facts([
      ["New reward", scored],
      ["Rollouts", `${found.rollouts_of}${found.limit === null ? "" : `, the first ${number(found.limit)}`}`],
      weights.length ? ["Weights", visible(weights.join(", "))] : null,
      own.reward === null
        ? null
        : ["Own reward reproduces", `${number(own.reproduced)} of ${counted(own.stored, "stored reward")}`],
    ].filter((one) => one !== null)),
    messages(key, "Why rollouts have no new reward", found.errors),
    messages(key, "How the own reward differs from the stored rewards", own.differences),
    remark === null ? null : element("p.notice.warn", {}, remark),
  );
}

/**
 * The control proves that the store has what rewards read; a reader must know where it does not.
 * @param {any} own the control
 * @returns {string | null}
 */
export function controlRemark(own) {
  if (own.remark) return `Control: ${visible(own.remark)}.`;
  if (!own.otherwise) return null;
  return "Control: the own reward draws at random, reads something outside task and result, or its files have changed.";
}

function messages(key, title, list) {
  if (!list.length) return null;
  const rows = list.map((one) => [
    number(one.count),
    visible(one.text) + (one.messages > 1 ? ` (${counted(one.messages, "message")} that begin alike)` : ""),
    rolloutLink(key, one.example),
  ]);
  return element("div.stack", {}, element("h3", {}, title), smallTable(title, [">Count", "Reason", "Example"], rows));
}

function order(found) {
  const { ranks } = found;
  if (!ranks) return panel("Order", none());
  return panel(
    "Order",
    facts([
      ["Kendall's tau, all rollouts", tau(ranks.tau, "all rewards are equal")],
      ["Kendall's tau, within groups", tau(ranks.tau_in_groups, "no group in which both rewards differ")],
      ["Rollouts that change their rank", `${number(ranks.moved)} (${percent(ranks.moved / found.distribution.rollouts)})`],
    ]),
    element(
      "p.note",
      {},
      "1: no pair of rollouts changes places; −1: all do." +
        (ranks.groups ? ` Within groups: the mean of ${counted(ranks.groups, "group")} in which both rewards differ.` : ""),
    ),
  );
}

function tau(value, why) {
  return value === null ? `undefined: ${why}` : number(value);
}

function groups(key, found) {
  const rows = [
    ["gains", "gain spread: would be trained now"],
    ["loses", "lose spread: would no longer be trained"],
    ["keeps", "have spread before and after"],
    ["none", "have no spread before or after"],
  ].map(([name, text]) => [text, number(found.counts[name] ?? 0)]);
  if (found.incomplete) rows.push(["not compared: a rollout has no new reward", number(found.incomplete)]);
  if (!found.compared && !found.incomplete)
    return panel("Groups", element("p.note", {}, "These rollouts have no groups: only training rollouts do."));
  return panel(
    "Groups",
    smallTable("Groups", ["", ">Groups"], rows),
    groupList(key, "Groups that gain spread", found.gain, found.counts.gains),
    groupList(key, "Groups that lose spread", found.lose, found.counts.loses),
  );
}

function groupList(key, title, list, total) {
  if (!list.length) return null;
  const rows = list.map((one) => [
    element("a", { href: link(["runs", key, "rollouts"], { group: one.group }) }, visible(one.group)),
    number(one.rollouts),
    number(one.before),
    number(one.after),
    visible(one.dropped_after || one.dropped_before),
  ]);
  const head = ["Group", ">Rollouts", ">Spread before", ">Spread after", "Left out because"];
  const shown = list.length < total ? `${number(list.length)} of ${number(total)}` : number(total);
  return fold(`${title} (${shown})`, (body) => body.append(smallTable(title, head, rows)), list.length <= OPEN_GROUPS);
}

function advantages(found) {
  if (found.unavailable)
    return panel("Advantages", element("p.note", {}, `They are not computed: ${visible(found.unavailable)}.`));
  return panel(
    "Advantages",
    facts([
      ["Estimator", visible(found.estimator)],
      ["Credit", visible(found.credit)],
      ["Calls with an advantage", number(found.calls)],
      ["Change sign", number(found.change_sign)],
      ["Get one", number(found.become_nonzero)],
      ["Lose theirs", number(found.become_zero)],
      ["Mean size", `${number(found.mean_absolute_before)} before, ${number(found.mean_absolute_after)} after`],
    ]),
  );
}

function rollouts(key, found, page) {
  const count = element("p.note", { role: "status" });
  const trouble = element("div");
  const more = element("button.plain", { type: "button", hidden: true }, "Show more");
  const table = new Table("Rollouts by their change", columns(key), {
    signal: page.signal,
    open: (row) => link(["runs", key, "rollouts", row.rollout]),
  });
  const asked = page.query.get("sort") ?? "";
  let sort = ORDERS.some(([name]) => name === asked) ? asked : "rank";
  let rows = [];
  const read = async (from) => {
    const wanted = sort;
    try {
      const query = { sort, offset: from, limit: PAGE };
      const answer = await get(["jobs", found.job, "rescored", "rollouts"], { query, signal: page.signal });
      if (wanted !== sort) return;
      rows = from ? [...rows, ...answer.rows] : answer.rows;
      fill(trouble);
      table.setRows(rows);
      table.node.hidden = !rows.length;
      more.hidden = rows.length >= answer.total;
      setText(count, rows.length ? `${number(rows.length)} of ${counted(answer.total, "rollout")}` : "No rollout.");
    } catch (error) {
      if (!page.signal.aborted) fill(trouble, problem(error.message, () => read(from)));
    }
  };
  more.addEventListener("click", () => read(rows.length));
  const by = choice("Rollouts", ORDERS, sort, (value) => {
    sort = value;
    page.remember({ sort: value === "rank" ? null : value });
    read(0);
  });
  read(0);
  return panel("Rollouts", element("div.bar", {}, by, count), trouble, table.node, more);
}

function columns(key) {
  const numeric = (name, title, width, text, more = {}) => ({ key: name, title, width, number: true, text, ...more });
  const change = (row) => (row.before === null || row.after === null ? null : row.after - row.before);
  const pair = (before, after) => (before === null && after === null ? "–" : `${number(before)} → ${number(after)}`);
  return [
    {
      key: "rollout",
      title: "Rollout",
      width: 170,
      middle: true,
      text: (row) => visible(row.rollout),
      href: (row) => link(["runs", key, "rollouts", row.rollout]),
    },
    numeric("before", "Before", 75, (row) => number(row.before)),
    numeric("after", "After", 75, (row) => number(row.after)),
    numeric("change", "Change", 80, (row) => signed(change(row)), { wide: true }),
    numeric("rank", "Rank", 150, (row) => pair(row.rank_before, row.rank_after)),
    numeric("advantage", "Advantage", 165, (row) => pair(row.advantage_before, row.advantage_after), { wide: true }),
    {
      key: "group",
      title: "Group",
      width: 140,
      wide: true,
      middle: true,
      text: (row) => visible(row.group),
      href: (row) => (row.group ? link(["runs", key, "rollouts"], { group: row.group }) : null),
    },
    {
      key: "text",
      title: "Feedback or error",
      width: 280,
      wide: true,
      text: (row) => brief(row.error || row.feedback),
      tone: (row) => (row.error ? "bad" : ""),
    },
  ];
}

function rolloutLink(key, id) {
  return element("a", { href: link(["runs", key, "rollouts", id]) }, visible(id));
}
