/** Tests of the pages' modules that need no browser. Run them with `node --test packages/console/tests/pages.test.mjs`. */

import assert from "node:assert/strict";
import test from "node:test";

const STATIC = "../src/leyden/console/static";
const { filterOf, RolloutColumns } = await import(`${STATIC}/columns.js`);
const { trend } = await import(`${STATIC}/convergence.js`);
const { indent, lineRange, newLine, outdent } = await import(`${STATIC}/editing.js`);
const { lineDiff } = await import(`${STATIC}/elements/diff.js`);
const { coloursOf } = await import(`${STATIC}/elements/shares.js`);
const format = await import(`${STATIC}/format.js`);
const { isMasked, legendTexts, measures, scaleOf, sum, usualMeasure } = await import(`${STATIC}/measures.js`);
const { oneAtATime } = await import(`${STATIC}/one_at_a_time.js`);
const { aroundZero, lowToHigh } = await import(`${STATIC}/quantiles.js`);
const { missing } = await import(`${STATIC}/views/run_frame.js`);
const router = await import(`${STATIC}/router.js`);
const { rangeText } = await import(`${STATIC}/elements/histogram.js`);
const { extent, lastOf, smooth, StepSeries } = await import(`${STATIC}/series.js`);
const { controlRemark } = await import(`${STATIC}/views/actions/reward_result.js`);
const spans = await import(`${STATIC}/spans.js`);

const column = (...rows) => {
  const names = [
    "id",
    "mode",
    "status",
    "set",
    "step",
    "version",
    "group",
    "task",
    "reward",
    "trained",
    "reason",
    "error",
    "agents",
  ];
  return Object.fromEntries(
    names.map((name) => [
      name,
      rows.map((row) => row[name] ?? (["step", "version", "reward", "trained"].includes(name) ? null : "")),
    ]),
  );
};
const answer = (rows, more = {}) => ({
  count: rows.length,
  next: rows.length,
  total: rows.length,
  indexed: rows.length,
  columns: column(...rows),
  ...more,
});
const span = (id, kind, start, end, more = {}) => ({
  id,
  kind,
  title: kind,
  parent: null,
  start,
  end,
  error: null,
  ...more,
});

test("a text that hides or reorders others can be seen", () => {
  assert.equal(format.visible("a\u0000b\u202ec\u200bd\n"), "a␀b⟨U+202E⟩c⟨U+200B⟩d\n");
  assert.equal(format.tokenText(" the\n"), "·the⏎");
  assert.equal(format.tokenText(""), "∅");
  assert.equal(format.visible(format.oneLine(" a\ufeff\n b ")), "a⟨U+FEFF⟩ b");
  assert.equal(format.brief("\ufeffa\n"), "⟨U+FEFF⟩a");
});

test("a text that is too long keeps its beginning and its end", () => {
  assert.equal(format.shortened("first (samename)", 16), "first (samename)");
  assert.equal(format.shortened("first (samename)", 10), "fir…ename)");
  assert.equal(format.shortened("😀😀😀😀", 3), "…😀😀");
});

test("a run's name cannot become a command", () => {
  assert.equal(format.shellWord("gae-0"), "gae-0");
  assert.equal(format.shellWord("a; rm -rf ~"), "'a; rm -rf ~'");
  assert.equal(format.shellWord("it's $(x)"), "'it'\\''s $(x)'");
  assert.equal(format.shellWord("--force"), "'--force'");
});

test("numbers are short, unknown ones a dash", () => {
  assert.equal(format.number(1234567), "1,234,567");
  assert.equal(format.number(-0.123456), "−0.1235");
  assert.equal(format.number(null), "–");
  assert.equal(format.duration(3725), "1 h 2 min");
  assert.equal(format.duration(119.7), "2 min 0 s");
  assert.deepEqual(format.distinct([0.5, 0.25]), ["0.5", "0.25"]);
  assert.deepEqual(format.distinct([1, 1.00004, 1.00009, 1.00009]), ["1", "1.00004", "1.00009", "1.00009"]);
});

test("a route survives any name", () => {
  const name = "a/b?c&d #e%~";
  const { path, query } = router.parse(router.link(["runs", name, "rollouts"], { text: "x=y&z", step: 3, none: null }));
  assert.deepEqual(path, ["runs", name, "rollouts"]);
  assert.equal(query.get("text"), "x=y&z");
  assert.equal(query.has("none"), false);
  assert.deepEqual(router.match(["runs", ":key", "rollouts"], path), { key: name });
  assert.equal(router.match(["runs", ":key"], path), null);
});

test("an address without a view is that of the runs, with its filters", () => {
  for (const hash of ["", "#", "#/", "#/runs"]) assert.deepEqual(router.parse(hash).path, ["runs"]);
  const { path, query } = router.parse("#/?state=stopped");
  assert.equal(router.link(path, Object.fromEntries(query)), "#/runs?state=stopped");
});

test("later steps are added, and another generation replaces all", () => {
  const data = new StepSeries();
  const part = (generation, steps, series) => ({
    generation,
    lines: steps.length,
    steps,
    series,
    held_out: [],
    alerts: [],
    groups: [],
  });
  data.add(part("a", [1, 2], { reward: [0.1, 0.2] }));
  data.add(part("a", [3], { loss: [5] }));
  assert.deepEqual(data.steps, [1, 2, 3]);
  assert.deepEqual(data.series, { reward: [0.1, 0.2, null], loss: [null, null, 5] });
  data.add(part("b", [1], { reward: [0.9] }));
  assert.deepEqual(data.series, { reward: [0.9] });
});

test("smoothing keeps a constant constant, and leaves gaps", () => {
  assert.deepEqual(
    smooth([2, null, 2], 0.9).map((value) => value && Number(value.toFixed(9))),
    [2, null, 2],
  );
});

test("rollouts are filtered, and a row that changed replaces the old one", () => {
  const data = new RolloutColumns();
  data.add(
    answer([
      { id: "a", reward: 0.2, reason: "timeout", step: 1 },
      { id: "b", reward: 0.8, error: "LookupError", step: 2 },
    ]),
  );
  assert.deepEqual(data.filter({ reason: "timeout" }), [0]);
  assert.deepEqual(data.filter({ low: "0.5" }), [1]);
  assert.deepEqual(data.filter({ text: "lookup" }), [1]);
  assert.deepEqual(data.filter({}), [1, 0]);
  data.add(
    answer([{ id: "a", reward: 0.9, reason: "", error: "LookupError", step: 1 }], { next: 3, total: 2, indexed: 2 }),
  );
  assert.equal(data.length, 2);
  assert.deepEqual(data.filter({ low: "0.5", text: "lookup" }), [1, 0]);
  data.add(answer([{ id: "c" }]));
  assert.equal(data.length, 1, "a cursor that went back means another store");
});

test("a value of the address that no field can show does not filter", () => {
  const filter = filterOf(new URLSearchParams("trained=perhaps&step=abc&low=0.5&high=x&status=odd&task=3&more=1"));
  assert.deepEqual(Object.fromEntries(Object.entries(filter).filter(([, value]) => value)), {
    status: "odd",
    task: "3",
    low: "0.5",
  });
});

test("a group has mean, spread and the staleness of its oldest rollout", () => {
  const data = new RolloutColumns();
  const row = (id, reward, version) => ({ id, reward, version, group: "g", mode: "train", step: 5, trained: true });
  data.add(answer([row("a", 0, 4), row("b", 1, 2)]));
  const [group] = data.groups(data.filter({ group: "g" }));
  assert.equal(group.mean, 0.5);
  assert.equal(group.spread, 0.5);
  assert.equal(group.staleness, 2);
  assert.equal(group.trained, 2);
});

test("series without a group are charts of their own, folded at first", () => {
  const data = new StepSeries();
  data.add({
    generation: "g",
    lines: 1,
    steps: [1],
    series: { sequences: [3], reward: [0.5], ratio_p01: [0.9] },
    held_out: [],
    alerts: [],
    groups: [
      { title: "Reward", series: ["reward", "reward_std"], folded: false },
      { title: "Ratio", series: ["ratio_p01"], folded: true },
      { title: "Critic", series: ["value_loss"], folded: false },
    ],
  });
  assert.deepEqual(data.charts(), [
    { title: "Reward", series: ["reward"], folded: false },
    { title: "Ratio", series: ["ratio_p01"], folded: true },
    { title: "sequences", series: ["sequences"], folded: true },
  ]);
});

test("a diff, applied, gives both texts", () => {
  const [before, after] = ["a\nb\nc\nd", "a\nx\nc\nd\ne"];
  const lines = lineDiff(before, after);
  const without = (kind) =>
    lines
      .filter((line) => line.kind !== kind)
      .map((line) => line.text)
      .join("\n");
  assert.equal(without("added"), before);
  assert.equal(without("removed"), after);
  assert.equal(lines.filter((line) => line.kind === "same").length, 3);
});

test("a scale has no class for a missing value, and tells signs apart", () => {
  const scale = aroundZero([-1, 0, 2, null], 0);
  assert.equal(scale.classOf(null), null);
  assert.equal(scale.classOf(0), "signed-3");
  assert.match(scale.classOf(-1), /^signed-[012]$/);
  assert.match(scale.classOf(2), /^signed-[456]$/);
  const low = lowToHigh([1, 2, 3, 4, 5, 6, 7]);
  assert.deepEqual(
    low.legend.map((part) => part.name),
    [0, 1, 2, 3, 4, 5, 6].map((index) => `low-${index}`),
  );
});

test("values that differ only by rounding have one colour, and the legend says so", () => {
  const call = (ratios, advantages) => measures({ logprobs: [-1, -2, -3], versions: [] }, { ratios, advantages });
  const legend = (all, key) => {
    const one = all.find((measure) => measure.key === key);
    return legendTexts(one, scaleOf(one));
  };
  const same = call([0.9999994, 1, 1.0000012], [0.5, 0.5000000298, 0.5]);
  assert.deepEqual(legend(same, "ratios"), ["all 1"]);
  assert.deepEqual(legend(same, "advantages"), ["all 0.5"]);
  assert.equal(usualMeasure(same), "logprobs");
  assert.equal(usualMeasure(call([1, 1, 1], [-0.5, 0, 1])), "advantages");
  const near = call([1, 1.00003, 1.00006], [0, 0, 0]);
  assert.equal(usualMeasure(near), "ratios");
  assert.deepEqual(legend(near, "ratios"), ["1", "1.00003", "1.00006"]);
  assert.equal(usualMeasure(measures({ logprobs: [-1], versions: [] }, null)), "logprobs");
});

test("masked tokens show no loss, and the others sum to the share", () => {
  const trained = { losses: [0.25, null, -0.5], weights: [1, null, 1], clipped: [false, null, true] };
  assert.deepEqual(
    [0, 1, 2].map((index) => isMasked(trained, index)),
    [false, true, false],
  );
  assert.equal(sum(trained.losses), -0.25);
  const loss = measures({ logprobs: [], versions: [] }, trained).find((one) => one.key === "losses");
  assert.equal(loss.text(loss.values[1]), "–");
});

test("a line that rises is told from noise", () => {
  const steps = Array.from({ length: 60 }, (_, index) => index);
  const verdict = (value) => trend(steps, steps.map(value)).verdict;
  assert.equal(
    verdict((step) => step * 0.01),
    "rising",
  );
  assert.equal(
    verdict((step) => Math.min(step, 30) + (step % 2) * 0.1),
    "flat",
  );
  assert.equal(
    verdict((step) => (step % 2 ? 0.4 : 0.6)),
    "unclear",
  );
  assert.equal(trend([1, 2], [0, 1]).verdict, "unknown");
});

test("lanes count parallel calls once, and the rest as the agent's", () => {
  const [model, tool, wait] = spans.lanes(
    [span("a", "model", 0, 2), span("b", "model", 1, 3), span("c", "tool", 4, 5)],
    0,
    10,
  );
  assert.deepEqual([model.total, tool.total, wait.total], ["3.0 s", "1.0 s", "6.0 s"]);
});

test("the first difference does not depend on times", () => {
  const left = [
    span("a", "message", 0, 0, { text: "hi" }),
    span("b", "tool", 1, 2, { tool: { name: "add", arguments: "{}", result: "7" } }),
  ];
  const right = [
    span("x", "message", 5, 5, { text: "hi" }),
    span("y", "tool", 6, 9, { tool: { name: "add", arguments: "{}", result: "8" } }),
  ];
  assert.equal(spans.firstDifference(left, right), 1);
  assert.equal(spans.firstDifference(left, left), null);
  assert.equal(spans.firstDifference(left, left.slice(0, 1)), 1);
  assert.equal(spans.firstCharacter("abc", "abd"), 2);
});

const edited = (text, change) => {
  const [before, after] = text.split("|").length === 3 ? [text.indexOf("|"), text.lastIndexOf("|") - 1] : [text.indexOf("|"), text.indexOf("|")];
  const plain = text.replaceAll("|", "");
  const { from, to, text: made, start, end } = change(plain, before, after);
  const result = plain.slice(0, from) + made + plain.slice(to);
  return start === end
    ? `${result.slice(0, start)}|${result.slice(start)}`
    : `${result.slice(0, start)}|${result.slice(start, end)}|${result.slice(end)}`;
};

test("Tab indents the selected lines, or to the next stop, and Shift and Tab takes that back", () => {
  assert.equal(edited("ab|", indent), "ab  |");
  assert.equal(edited("a|b\n\nc|d\ne", indent), "    a|b\n\n    c|d\ne");
  assert.equal(edited("a\n|b\n|c", indent), "a\n    |b\n|c");
  assert.equal(edited("      a|b", outdent), "  a|b");
  assert.equal(edited("  |\n\tx|", outdent), "|\nx|");
  assert.equal(edited("a|b", outdent), "a|b");
});

test("a new line is as far in as the last one, and further after a colon", () => {
  assert.equal(edited("  if a:|", newLine), "  if a:\n      |");
  assert.equal(edited("  a|b", newLine), "  a\n  |b");
  assert.deepEqual(lineRange("ab\ncd\n", 2), [3, 5]);
  assert.deepEqual(lineRange("ab", 9), [0, 2]);
});

test("work that is requested while it runs is done once more afterwards", async () => {
  const ends = [];
  let begun = 0;
  const run = oneAtATime(() => {
    begun++;
    return new Promise((resolve, reject) => ends.push({ resolve, reject }));
  });
  const first = run();
  run();
  run();
  assert.equal(begun, 1);
  ends[0].resolve();
  await new Promise((resolve) => setTimeout(resolve));
  assert.equal(begun, 2);
  ends[1].reject(new Error("failed"));
  await assert.rejects(first, /failed/);
  run();
  assert.equal(begun, 3);
});

test("a phase has the same colour on every page, whatever the order of the phases", () => {
  const names = ["evaluate", "rollouts", "export", "other", "reflection"];
  const byName = (list) => Object.fromEntries(coloursOf(list).map((colour, index) => [list[index], colour]));
  assert.deepEqual(byName(names), byName([...names].reverse()));
  assert.equal(new Set(coloursOf(names)).size, names.length);
  assert.equal(coloursOf(["update"])[0], coloursOf(["rollouts", "update"])[1]);
});

test("what a run that has ended lacks does not come any more", () => {
  assert.equal(missing({ state: "running" }, "Not known"), "Not known yet.");
  for (const state of ["failed", "stopped", "finished"]) assert.equal(missing({ state }, "Not known"), "Not known.");
});

test("a step without a reason for which something was left out has a zero", () => {
  const series = new StepSeries();
  const of = (steps, columns) => ({ generation: "a", lines: 0, steps, series: columns, held_out: [], alerts: [], groups: [] });
  series.add(of([1, 2], { reward: [0.5, null], "rollouts_left_out/no reward": [3, null] }));
  series.add(of([3], { "calls_left_out/too long": [2] }));
  assert.deepEqual(series.series, {
    reward: [0.5, null, null],
    "rollouts_left_out/no reward": [3, 0, 0],
    "calls_left_out/too long": [0, 0, 2],
  });
});

test("a chart of one step has that step alone, and a legend the last value of each series", () => {
  assert.deepEqual(extent([0]), [-0.5, 0.5]);
  assert.deepEqual(extent([1, 4]), [1, 4]);
  assert.equal(lastOf([1, 2.077, null, null]), 2.077);
  assert.equal(lastOf([0, null]), 0);
  assert.equal(lastOf([null]), null);
});

test("a histogram says how many rollouts have no reward", () => {
  assert.equal(rangeText([Infinity, -Infinity], "reward", 0, 0, 264), "no rollout has a reward");
  assert.equal(rangeText([-0.5, 2], "reward", 61, 61, 264), "−0.5 to 2; 61 shown; 203 without a reward");
  assert.equal(rangeText([1, 1], "reward", 4, 2, 2), "all 1; 2 shown");
});

test("the tree shows a reward as other places do", () => {
  const reward = { value: -0.4697736668370316 };
  assert.equal(spans.summary({ title: "reward", kind: "reward", reward }), "reward · −0.4698");
});

test("only a reward that came out otherwise is explained, not one that read what is not stored", () => {
  const control = { reproduced: 0, stored: 8, otherwise: 0, remark: "" };
  assert.equal(controlRemark(control), null);
  assert.match(controlRemark({ ...control, otherwise: 2 }), /draws at random/);
  assert.equal(controlRemark({ ...control, remark: "own.py has changed" }), "Control: own.py has changed.");
});
