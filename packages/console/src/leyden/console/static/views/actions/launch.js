/**
 * Starts a run like another one: its run file, to be changed before.
 * @module
 */

import { actionsAllowed, get } from "../../api.js";
import { element, fill } from "../../dom.js";
import { lineRange } from "../../editing.js";
import { action } from "../../elements/action.js";
import { command, empty, load, panel, problem } from "../../elements/page.js";
import { number, shellWord, visible } from "../../format.js";
import { link } from "../../router.js";
import { inTheFolder, runFrame } from "../run_frame.js";

/** Milliseconds between two looks for a run that has been started. */
const LOOK_AGAIN = 1000;

/** @param {import("../../app.js").Page} page */
export async function show(page) {
  runFrame(page, "launch", [["New run", null]], async (run, body) => {
    if (run.folder === null)
      return body.append(inTheFolder(run, "The run file is"));
    const again = `leyden train --config ${shellWord(`${run.folder}/config.yaml`)} --name NAME`;
    if (!(await actionsAllowed())) {
      body.append(
        empty("Pages can start runs if the console is started so:", "leyden console --allow-actions"),
        panel("The same in a terminal", command(again)),
      );
      return;
    }
    const target = element("div.stack");
    body.append(target);
    const request = () => get(["runs", page.parameters.key, "launch"], { signal: page.signal });
    load(target, page.signal, request, (prepared) => draw(page, target, prepared));
  });
}

function draw(page, target, prepared) {
  const name = element("input", { type: "text", value: prepared.name, required: true, spellcheck: "false" });
  const text = element("textarea.code", { rows: "22", spellcheck: "false" });
  text.value = prepared.text;
  const check = element("input", { type: "checkbox", checked: prepared.check });
  const open = element("p");
  const wrong = element("div.trouble", { id: "run-file-error" });
  const accept = () => {
    fill(wrong);
    text.removeAttribute("aria-invalid");
    text.removeAttribute("aria-describedby");
  };
  text.addEventListener("input", accept);
  const start = action("Start the run", {
    path: () => ["runs", page.parameters.key, "launch"],
    body: () => {
      accept();
      fill(open);
      return { name: name.value.trim(), text: text.value, check: check.checked };
    },
    onStart: () => showWhenBegun(page, `${prepared.runs}/${name.value.trim()}`, open),
    onRefused: (error) => {
      if (error.status !== 422 || error.line === null) return false;
      fill(wrong, problem(`Line ${number(error.line)}: ${error.message}`, null));
      text.setAttribute("aria-invalid", "true");
      text.setAttribute("aria-describedby", wrong.id);
      showLine(text, error.line);
      return true;
    },
    signal: page.signal,
  });
  target.append(
    panel(
      "A run like this one",
      element("p.note", {}, `It is written to ${visible(prepared.runs)}, and goes on when the console ends.`),
      prepared.has_secrets &&
        element("p.notice.warn", {}, "The run file has masked secrets (***). A run refuses them: name them anew."),
      element("label.field", {}, element("span", {}, "Name"), name),
      element("label.field", {}, element("span", {}, "Run file (YAML): settings that differ from the defaults"), text),
      wrong,
      element("label.field.check", {}, check, "Check on the first batch that it can learn"),
      start,
      open,
    ),
  );
}

/** Selects a line of a text, from 1, and scrolls to it. */
function showLine(text, line) {
  const [from, to] = lineRange(text.value, line);
  text.focus();
  text.setSelectionRange(from, to);
  const height = parseFloat(getComputedStyle(text).lineHeight) || 18;
  text.scrollTop = Math.max(0, (line - 3) * height);
}

/** Shows a link to the run in `folder` as soon as it is there. */
async function showWhenBegun(page, folder, target) {
  fill(target);
  while (!page.signal.aborted) {
    await new Promise((resolve) => setTimeout(resolve, LOOK_AGAIN));
    const runs = await get(["runs"], { signal: page.signal }).catch(() => null);
    const run = runs?.runs.find((one) => one.folder === folder);
    if (run) return fill(target, element("a", { href: link(["runs", run.key]) }, `Open ${visible(run.label)}`));
  }
}
