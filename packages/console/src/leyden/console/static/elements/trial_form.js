/**
 * The form of a trial: prompts and policy of both variants, and the tasks.
 * @module
 */

import { element, fill } from "../dom.js";
import { counted, number, visible } from "../format.js";
import { diff } from "./diff.js";
import { choice, fold, longText, panel } from "./page.js";

const TASKS = { count: 16, most: 1000 };
const REPEATS = { count: 1, most: 100 };

/**
 * Texts that the reader has written, by run, variant and name; they stay while the page is open.
 * @type {Map<string, Record<string, Record<string, string>>>}
 */
const drafts = new Map();

/**
 * @param {import("../app.js").Page} page
 * @param {any} run
 * @param {any} offer answer of `/runs/{key}/try`
 * @param {object} actions
 * @param {(tasks: string) => void} actions.find
 * @param {(body: object) => void} actions.start
 * @param {(why: string) => void} actions.refuse
 * @returns {HTMLElement}
 */
export function trialForm(page, run, offer, { find, start, refuse }) {
  const { query } = page;
  const { key } = page.parameters;
  if (!drafts.has(key)) drafts.set(key, { a: {}, b: {} });
  const written = /** @type {any} */ (drafts.get(key));
  const setNames = offer.tasks.map((one) => one.name);
  const chosen = { tasks: setNames.includes(query.get("tasks")) ? query.get("tasks") : setNames[0] };
  const variants = Object.fromEntries(
    [
      ["a", "own"],
      ["b", "edited"],
    ].map(([name, usual]) => [name, readVariant(page, run, offer, name, usual)]),
  );
  const sides = ["a", "b"].map((name) =>
    side(page, offer, name, variants[name], written[name], () => find(chosen.tasks)),
  );
  const count = numberField("Number of tasks", query.get("n"), TASKS, (value) => page.remember({ n: value }));
  const repeats = numberField("Runs of each task", query.get("repeats"), REPEATS, (value) =>
    page.remember({ repeats: value }),
  );
  const submit = (event) => {
    event.preventDefault();
    const body = Object.fromEntries(["a", "b"].map((name) => [name, asked(offer, variants[name], written[name])]));
    const same = ["a", "b"].find((name) => body[name].prompts === "edited" && !Object.keys(body[name].texts).length);
    if (same) return refuse(`No text of variant ${same.toUpperCase()} differs from the agent's own: edit one.`);
    start({ ...body, tasks: chosen.tasks, count: Number(count.input.value), repeats: Number(repeats.input.value) });
  };
  return element(
    "form.stack",
    { onsubmit: submit, "aria-label": "Two variants" },
    element("div.columns", {}, sides),
    element(
      "div.bar",
      {},
      choice(
        "Tasks",
        setNames.map((name) => [name, name]),
        chosen.tasks,
        (value) => {
          chosen.tasks = value;
          page.remember({ tasks: value });
        },
      ),
      count.node,
      repeats.node,
      element("button.main", { type: "submit" }, "Compare"),
    ),
    !offer.reward &&
      element("p.note", {}, "The run has no reward function, so the agent must return its reward itself."),
  );
}

/** The choices of a variant, as the address has them. */
function readVariant(page, run, offer, name, usual) {
  const options = promptOptions(offer).map(([value]) => value);
  const prompts = page.query.get(name) ?? usual;
  const kept = run.versions.find((one) => one.kept)?.version;
  const policy = Number(page.query.get(`policy-${name}`) ?? kept ?? 0);
  return {
    prompts: options.includes(prompts) ? prompts : usual,
    policy: offer.policies.includes(policy) ? policy : (offer.policies[0] ?? null),
  };
}

/** The variant as the server takes it. */
function asked(offer, { prompts, policy }, written) {
  if (prompts.startsWith("v")) return { prompts: "version", version: Number(prompts.slice(1)), policy };
  if (prompts === "own") return { prompts, policy };
  const changed = offer.texts.filter((one) => written[one.name] !== undefined && written[one.name] !== one.text);
  return { prompts, policy, texts: Object.fromEntries(changed.map(({ name }) => [name, written[name]])) };
}

function promptOptions(offer) {
  return [
    ["own", offer.templates ? "as the run began" : "the agent's own"],
    ["edited", "edited here"],
    ...offer.versions.map(({ version }) => [`v${version}`, `of version ${number(version)}`]),
  ];
}

function side(page, offer, name, variant, written, find) {
  const content = element("div.stack");
  const draw = () => fill(content, contentOf(offer, name, variant, written, find));
  draw();
  const prompts = choice("Prompts", promptOptions(offer), variant.prompts, (value) => {
    variant.prompts = value;
    page.remember({ [name]: value });
    draw();
  });
  const policies = offer.policies.map((one) => [String(one), one ? `version ${number(one)}` : "version 0, the first"]);
  const policy =
    policies.length > 1 &&
    choice("Answered by", policies, String(variant.policy), (value) => {
      variant.policy = Number(value);
      page.remember({ [`policy-${name}`]: value });
    });
  return panel(`Variant ${name.toUpperCase()}`, element("div.bar", {}, prompts, policy), content);
}

function contentOf(offer, name, { prompts }, written, find) {
  const { texts } = offer;
  if (prompts.startsWith("v")) {
    const version = offer.versions.find((one) => `v${one.version}` === prompts);
    return Object.entries(version.texts).flatMap(([text, value]) => {
      const own = texts.find((one) => one.name === text)?.text;
      const title = element("h3", {}, visible(text));
      return [title, own === undefined || own === value ? longText(value, { name: text }) : diff(own, value)];
    });
  }
  if (!texts.length) {
    const button = element("button", { type: "button", onclick: find }, "Find the prompts");
    return prompts === "own"
      ? []
      : [
          element(
            "p.note",
            {},
            "This run's folder does not have the texts that the agent sends. ",
            "They are found by running the agent on two tasks.",
          ),
          element("div.bar", {}, button),
        ];
  }
  if (prompts === "own") {
    return [
      fold(counted(texts.length, "text"), (body) =>
        body.append(
          ...texts.flatMap((one) => [element("h3", {}, visible(one.name)), longText(one.text, { name: one.name })]),
        ),
      ),
    ];
  }
  const hint = "{v1}, {v2} and so on are variables, which a text must keep. Literal braces are doubled: {{ and }}.";
  return [
    texts.some((one) => /[{}]/.test(one.text)) && element("p.note", {}, hint),
    ...texts.map((one) => editor(name, one, written)),
  ];
}

/** A text with its difference from the agent's own. */
function editor(variant, { name, text, place }, written) {
  const difference = element("div");
  const rows = Math.min(14, text.split("\n").length + 2);
  const area = element("textarea", { rows, spellcheck: "false", dir: "auto" });
  area.value = written[name] ?? text;
  const draw = () =>
    fill(difference, area.value === text ? element("p.note", {}, "As the agent sends it.") : diff(text, area.value));
  area.addEventListener("input", () => {
    written[name] = area.value;
    draw();
  });
  draw();
  const label = `${visible(name)} (${visible(place)})`;
  return element(
    "div.stack",
    { role: "group", "aria-label": `${visible(name)} of variant ${variant.toUpperCase()}` },
    element("label.field", {}, element("span", {}, label), area),
    difference,
  );
}

function numberField(label, given, { count, most }, onChange) {
  const input = element("input", { type: "number", min: "1", max: String(most), required: true });
  const value = Number(given ?? count);
  input.value = String(Number.isInteger(value) && value >= 1 && value <= most ? value : count);
  input.addEventListener("change", () => input.checkValidity() && onChange(input.value));
  return { input, node: element("label.field", {}, element("span", {}, label), input) };
}
