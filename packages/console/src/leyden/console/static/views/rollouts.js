/**
 * All rollouts of a run, or its groups, and why some were not trained.
 * @module
 */

import { get } from "../api.js";
import { filterOf, readRollouts } from "../columns.js";
import { element, fill, setText } from "../dom.js";
import { Histogram } from "../elements/histogram.js";
import { choice, failure, fold, load, problem, setOptions, smallTable } from "../elements/page.js";
import { Table } from "../elements/table.js";
import { counted, duration, moment, number, visible } from "../format.js";
import { oneAtATime } from "../one_at_a_time.js";
import { go, link } from "../router.js";
import { inTheFolder, nothingOf, runFrame } from "./run_frame.js";

const CHOICES = [
  ["mode", "Mode"],
  ["status", "Status"],
  ["set", "Held-out set"],
  ["reason", "Not trained because"],
  ["agents", "Agents"],
];
const NUMBERS = [
  ["step", "Step"],
  ["version", "Version"],
  ["task", "Task"],
];
const TONES = { succeeded: "good", failed: "bad", cancelled: "warn", interrupted: "warn", running: "live" };

/** @param {import("../app.js").Page} page */
export async function show(page) {
  /** @type {RolloutsPage | null} */
  let shown = null;
  const frame = runFrame(page, "rollouts", [["Rollouts", null]], (run, body) => {
    shown = new RolloutsPage(page, run, body);
    shown.read();
  });
  frame.onChange(() => shown?.read());
}

class RolloutsPage {
  constructor(page, run, body) {
    this.page = page;
    this.run = run;
    /** @type {import("../columns.js").RolloutColumns | null} */
    this.data = null;
    this.filter = filterOf(page.query);
    this.grouped = page.query.get("view") === "groups";
    /** @type {Map<string, import("../columns.js").Group>} */
    this.known = new Map();
    this.read = oneAtATime(() => this.#request());
    /** @type {{rows: number[], groups: import("../columns.js").Group[]}} what the last filter left */
    this.shown = { rows: [], groups: [] };
    this.selects = {};
    this.histogram = new Histogram("Reward", [this.filter.low, this.filter.high], ([low, high]) =>
      this.#set({ low, high }),
    );
    this.count = element("p.note", { role: "status" });
    this.failed = element("div");
    this.why = element("div");
    const options = (open) => ({
      signal: page.signal,
      open,
      sort: page.query.get("sort") ?? "",
      onSort: (sort) => page.remember({ sort }),
    });
    this.table = new Table(
      "Rollouts",
      this.#rolloutColumns(),
      options((row) => this.#href(row)),
    );
    this.groupTable = new Table(
      "Groups",
      this.#groupColumns(),
      options((group) => link(["runs", run.key, "rollouts"], { group: group.id })),
    );
    this.list = element("div");
    body.append(this.failed, this.#bar(), this.histogram.node, this.why, this.count, this.list);
    this.#drawWhy();
  }

  /** Reads what is new. */
  async #request() {
    try {
      await this.#readOnce();
      fill(this.failed, this.data?.problem && problem(this.data.problem, () => this.read()));
    } catch (error) {
      if (this.page.signal.aborted) return;
      const retry = failure(error, () => this.read());
      fill(this.failed, retry);
    }
  }

  #readOnce() {
    return readRollouts(this.run.key, this.page.signal, (columns, changed) => {
      const drawn = this.data === columns;
      this.data = columns;
      if (changed || !drawn) {
        for (const [name] of CHOICES) this.#renewOptions(name);
        this.#renew();
      } else setText(this.count, this.#countText(this.shown.rows, this.shown.groups));
    });
  }

  #set(changes) {
    Object.assign(this.filter, changes);
    this.page.remember(changes);
    this.#renew();
  }

  /** Filters and draws. */
  #renew() {
    const { data } = this;
    if (!data) return;
    const rows = data.filter(this.filter);
    this.histogram.setData(data.columns.reward ?? [], rows);
    const table = this.grouped ? this.groupTable : this.table;
    const groups = this.grouped ? data.groups(rows) : [];
    if (!data.length)
      fill(
        this.list,
        nothingOf(this.run, "This run has no rollouts", "A run makes them while it trains:"),
      );
    else if (this.list.firstChild !== table.node) fill(this.list, table.node);
    table.setRows(this.grouped ? this.#sameGroups(groups) : rows);
    this.shown = { rows, groups };
    setText(this.count, this.#countText(rows, groups));
  }

  #countText(rows, groups) {
    const { data } = this;
    const shown =
      rows.length === data.length
        ? counted(rows.length, "rollout")
        : `${number(rows.length)} of ${counted(data.length, "rollout")}`;
    const older =
      data.total > data.length && data.indexed >= data.total
        ? `; the store has ${number(data.total)}, of which the newest are here`
        : "";
    const indexing =
      data.indexed < data.total ? `; ${number(data.indexed)} of ${number(data.total)} are read so far` : "";
    return `${this.grouped ? `${counted(groups.length, "group")} of ` : ""}${shown}${older}${indexing}`;
  }

  /** A group keeps its object while the page is open, so that the table keeps its selection. */
  #sameGroups(groups) {
    return groups.map((group) => {
      const same = Object.assign(this.known.get(group.id) ?? {}, group);
      this.known.set(group.id, same);
      return same;
    });
  }

  #bar() {
    const text = element("input", { type: "search", value: this.filter.text, placeholder: "id, error, agent …" });
    text.addEventListener("input", () => this.#set({ text: text.value }));
    const fields = [element("label.field", {}, element("span", {}, "Search"), text)];
    const view = choice(
      "Show",
      [
        ["", "rollouts"],
        ["groups", "groups"],
      ],
      this.grouped ? "groups" : "",
      (value) => {
        this.grouped = value === "groups";
        this.page.remember({ view: value });
        this.#renew();
      },
    );
    for (const [name, label] of CHOICES) {
      const field = choice(label, [["", "all"]], this.filter[name], (value) => this.#set({ [name]: value }));
      this.selects[name] = field.querySelector("select");
      fields.push(field);
    }
    fields.push(
      choice(
        "Trained",
        [
          ["", "all"],
          ["yes", "yes"],
          ["no", "no"],
        ],
        this.filter.trained,
        (value) => this.#set({ trained: value }),
      ),
    );
    for (const [name, label] of NUMBERS) fields.push(this.#numberField(name, label));
    const clear = () => go(link(["runs", this.run.key, "rollouts"], { view: this.grouped ? "groups" : null }));
    return element(
      "div.bar",
      { role: "search" },
      view,
      fields,
      element("button.plain", { type: "button", onclick: clear }, "Clear filters"),
    );
  }

  #numberField(name, label) {
    const field = element("input", { type: "number", min: 0, value: this.filter[name] });
    field.addEventListener("input", () => this.#set({ [name]: field.value }));
    return element("label.field", {}, element("span", {}, label), field);
  }

  #renewOptions(name) {
    const counts = this.data.counts(name).slice(0, 200);
    const options = [["", "all"], ...counts.map(([value, count]) => [value, `${value} (${number(count)})`])];
    const value = this.filter[name];
    if (value && !counts.some(([one]) => one === value)) options.push([value, `${value} (0)`]);
    setOptions(this.selects[name], options, value);
    this.selects[name].closest("label").hidden = counts.length < 2 && !value;
  }

  #drawWhy() {
    const { folder, others } = this.run;
    if (folder === null) this.why.append(inTheFolder(this.run, "What was not trained, and why, is"));
    if (others)
      this.why.append(
        element(
          "p.note",
          {},
          `This store has ${counted(others, "other run")}, and does not record which run made a rollout: these are the rollouts of all.`,
        ),
      );
    if (folder === null) return;
    const { signal } = this.page;
    const request = () => get(["runs", this.run.key, "why"], { signal });
    const href = (reason) => link(["runs", this.run.key, "rollouts"], { reason });
    const draw = (body) => load(body, signal, request, (why) => fill(body, whyContent(why, href, this.run)));
    this.why.append(fold("What was not trained, and why", draw));
  }

  #href(row) {
    return link(["runs", this.run.key, "rollouts", this.data.columns.id[row]]);
  }

  #rolloutColumns() {
    const at = (name) => (row) => this.data.columns[name][row];
    const text = (name) => (row) => visible(String(at(name)(row) ?? ""));
    const count = (name) => (row) => number(at(name)(row));
    const column = (name, title, width, more) => ({
      key: name,
      title,
      width,
      text: text(name),
      value: at(name),
      ...more,
    });
    const staleness = (row) => this.data.staleness(row);
    return [
      column("id", "Rollout", 252, { middle: true, href: (row) => this.#href(row) }),
      column("status", "Status", 95, { tone: (row) => TONES[at("status")(row)] ?? "" }),
      column("reward", "Reward", 80, { number: true, text: count("reward") }),
      column("trained", "Trained", 80, {
        text: (row) => (at("trained")(row) === null ? "–" : at("trained")(row) ? "yes" : "no"),
      }),
      column("reason", "Not trained because", 178, {}),
      column("step", "Step", 65, { number: true, wide: true, text: count("step") }),
      column("version", "Version", 80, { number: true, wide: true, text: count("version") }),
      {
        key: "staleness",
        title: "Staleness",
        width: 96,
        number: true,
        wide: true,
        text: (row) => number(staleness(row)),
        value: staleness,
      },
      column("task", "Task", 65, { number: true, wide: true, text: count("task") }),
      column("calls", "Calls", 65, { number: true, wide: true, text: count("calls") }),
      column("tokens", "Tokens", 80, { number: true, wide: true, text: count("tokens") }),
      column("seconds", "Duration", 90, { number: true, wide: true, text: (row) => duration(at("seconds")(row)) }),
      column("agents", "Agents", 130, { wide: true }),
      column("started", "Started", 135, { wide: true, text: (row) => moment(at("started")(row)) }),
      column("error", "Error", 240, { wide: true, tone: () => "bad" }),
    ];
  }

  #groupColumns() {
    const numeric = (key, title, width, value, more = {}) => ({
      key,
      title,
      width,
      number: true,
      value,
      text: (group) => number(value(group)),
      ...more,
    });
    return [
      {
        key: "group",
        title: "Group",
        width: 150,
        middle: true,
        text: (group) => visible(group.id),
        value: (group) => group.id,
        href: (group) => link(["runs", this.run.key, "rollouts"], { group: group.id }),
      },
      numeric("size", "Rollouts", 80, (group) => group.rows.length),
      numeric("mean", "Mean reward", 122, (group) => group.mean),
      numeric("spread", "Spread", 80, (group) => group.spread),
      {
        key: "rewards",
        title: "Rewards",
        width: 230,
        wide: true,
        text: (group) => group.rewards.map(number).join("  "),
      },
      numeric("step", "Step", 65, (group) => group.step),
      {
        key: "versions",
        title: "Versions",
        width: 90,
        wide: true,
        text: (group) => group.versions.join(", "),
        value: (group) => group.versions[0] ?? null,
      },
      numeric("staleness", "Staleness", 96, (group) => group.staleness, { wide: true }),
      numeric("task", "Task", 65, (group) => group.task, { wide: true }),
      numeric("trained", "Trained", 80, (group) => group.trained, { wide: true }),
      {
        key: "reason",
        title: "Not trained because",
        width: 178,
        text: (group) => visible(group.reasons.join(", ")),
        value: (group) => group.reasons[0] ?? null,
      },
    ];
  }
}

/** The counts of `leyden why` as a table, with links that filter by reason. */
function whyContent(why, href, run) {
  const reasons = (list, linked) =>
    list.map((one) => [
      linked ? element("a", { href: href(one.reason) }, visible(one.reason)) : visible(one.reason),
      number(one.count),
      visible(one.means ?? ""),
      visible(one.change ?? ""),
      one.example && element("a", { href: link(["runs", run.key, "rollouts", one.example]) }, visible(one.example)),
    ]);
  const head = ["Reason", ">Count", "What it means", "What to change", "Example"];
  const part = (title, list, linked = false) =>
    list.length ? [element("h3", {}, title), smallTable(title, head, reasons(list, linked))] : [];
  return [
    element(
      "p",
      {},
      `${number(why.rollouts_trained)} of ${counted(why.rollouts, "training rollout")} were trained in ${counted(why.steps, "step")}; ` +
        `${number(why.calls_trained)} of ${counted(why.calls, "model call")} were trained.`,
    ),
    ...part("Rollouts that were not trained", why.rollouts_left_out, true),
    ...part("Calls that were not trained", why.calls_left_out),
    ...part("Held-out rollouts that failed", why.held_out_failures),
    ...why.remarks.map((remark) => element("p.note", {}, visible(remark))),
  ];
}
