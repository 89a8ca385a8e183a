"""`leyden prompts`: the prompts of an agent, found in what it sends, and what to change in its source."""

import sys
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from leyden.core.cli.command import Command, TakesCommand, given_command
from leyden.core.cli.commands.prompts.compare import try_
from leyden.core.cli.commands.prompts.tree import tree
from leyden.core.cli.options import (
    RUNS,
    ApiKeyEnvOption,
    ConcurrencyOption,
    DeviceOption,
    EndpointOption,
    EnvOption,
    HookOption,
    InputOption,
    IsolationOption,
    JsonOption,
    ModelOption,
    PolicyOption,
    ProviderKeyEnvOption,
    ProviderOption,
    RunsOption,
    TasksOption,
    TimeoutOption,
    answering,
    check_policy_device,
    chosen_agent,
    read_env,
)
from leyden.core.data.encoding.json_line import json_line
from leyden.core.data.isolation import check_isolation
from leyden.core.errors import UsageError
from leyden.core.masking import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leyden.core.data.prompts.edits import PromptComponent
    from leyden.core.trainer.run_folder.models import Models
    from leyden.core.trainer.run_folder.versions import ModelVersion
    from leyden.core.trajectory.prompts.discover import FoundPrompts

FIND = "find"
SHOWN_CHARACTERS = 70


class _FindByDefault(TyperGroup):
    """Group of commands whose first one runs if no command is named: `leyden prompts AGENT` finds its prompts."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, with the default command before them if they name none."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = [FIND, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_FindByDefault,
    help="The prompts of an agent: `leyden prompts AGENT` finds them, `try` compares two on the same tasks, `tree` "
    "shows the search of a run, and `apply` prints what to change in its source.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(FIND, cls=TakesCommand)
def find(
    context: typer.Context,
    agent: Annotated[str | None, typer.Argument(help="path/to/file.py:attribute or package.module:attribute")] = None,
    *,
    tasks: TasksOption,
    count: Annotated[int, typer.Option("--count", "-n", help="Run the first so many tasks.")] = 5,
    out: Annotated[Path, typer.Option(help="File to write; it must not exist.")] = Path("prompts.yaml"),
    input: InputOption = None,
    hook: HookOption = None,
    policy: PolicyOption = None,
    endpoint: EndpointOption = None,
    model: ModelOption = None,
    api_key_env: ApiKeyEnvOption = None,
    provider: ProviderOption = None,
    provider_key_env: ProviderKeyEnvOption = None,
    device: DeviceOption = "cpu",
    concurrency: ConcurrencyOption = 4,
    isolation: IsolationOption = "auto",
    timeout: TimeoutOption = 120.0,
    env: EnvOption = None,
    json: JsonOption = False,
) -> int:
    """Run AGENT, or COMMAND, on a few tasks, and write the prompts in its model calls to a file.

    Exit code 1 when no prompt was found.
    """
    from leyden.core.trainer.prompt_file import write_prompts
    from leyden.core.trainer.rollouts.tasks import load_tasks
    from leyden.core.trainer.services.dev import DevPlan
    from leyden.core.trainer.services.prompts import discover_prompts
    from leyden.core.trainer.serving.provider import read_provider

    named = chosen_agent(agent, given_command(context))
    if named is None:
        raise UsageError("missing AGENT, or -- COMMAND; see `leyden prompts find --help`")
    if out.exists():
        raise UsageError(f"{out} exists, and may have new texts: give another file with --out, or remove it")
    resources = answering(policy, endpoint, model, api_key_env)
    check_policy_device(device, policy)
    plan = DevPlan(
        policy=policy,
        device=device,
        resources=resources,
        provider=read_provider(provider, provider_key_env),
        concurrency=concurrency,
        isolation=check_isolation(isolation),
        timeout_seconds=timeout,
        input=input,
        hooks=tuple(hook or ()),
        env=read_env(env or [], given_command(context)),
    )
    found, results = discover_prompts(plan, named, load_tasks(tasks, count))
    if found.edits.components:
        write_prompts(out, found.edits, found.notes)
    failed = sum(result.rollout.status != "succeeded" for result in results)
    _show_found(found, out, failed, len(results), json=json)
    return 0 if found.edits.components else 1


@app.command("apply", cls=Command)
def apply(
    prompts: Annotated[
        str, typer.Argument(metavar="FILE|RUN[:VERSION]", help="Prompt file with new texts, or a version of a run.")
    ],
    *,
    runs: RunsOption = RUNS,
    json: JsonOption = False,
) -> None:
    """Print each changed prompt of a file, or of a run's version: what differs, and the text to paste.

    Also prints how to send the new texts without a change of the agent's source.
    """
    from leyden.core.trainer.prompt_file import read_prompts
    from leyden.core.trainer.run_folder.prompts.files import PROMPT_FILE
    from leyden.core.trainer.run_folder.prompts.named import is_prompt_file, prompts_of_version

    if is_prompt_file(prompts):
        _apply_edits(read_prompts(prompts).changed, prompts, prompts, json=json)
        return
    models, version = prompts_of_version(runs, prompts)
    _apply_templates(models, version, json=json)
    for name, edits in version.edits.items():
        file = PROMPT_FILE if len(version.edits) == 1 else f"{name}.yaml"
        _apply_edits(edits.changed, f"version {version.label}", _served_file(models, version, runs, file), json=json)


app.command("try", cls=TakesCommand)(try_)
app.command("tree", cls=Command)(tree)


def _apply_edits(changed: "Sequence[PromptComponent]", named: str, served: str, *, json: bool) -> None:
    """Print the changed components of `named`; `served` is the file with which a gateway sends their texts."""
    if json:
        for component in changed:
            sys.stdout.write(json_line(component))
        return
    if not changed:
        sys.stdout.write(f"{printable(named)} changes no prompt: no component has a `new_text`\n")
        return
    for component in changed:
        sys.stdout.write("\n".join([*_changes(component), "", ""]))
    sys.stdout.write(
        "to send the new texts without a change of the agent, let `leyden gateway` answer it, with --endpoint or "
        f"--policy, and --prompts {printable(served)}\n"
    )


def _served_file(models: "Models", version: "ModelVersion", runs: Path, name: str) -> str:
    """Return the run's own prompt file of a version, or the one of an export, with the command that makes it."""
    own = models.folder.prompts / name
    if version.version == models.kept and own.is_file():
        return str(own)
    where = "" if runs == RUNS else f" --runs {runs}"
    folder = "exported" if not models.config.policies else "exported/prompts"
    export = f"leyden models export {version.run} {version.version} exported{where}"
    return f"{folder}/{name} (written by `{export}`)"


def _apply_templates(models: "Models", version: "ModelVersion", *, json: bool) -> None:
    """Print the prompt templates of a version that differ from those of the run's first version."""
    first = models.versions[min(models.versions)]
    for name, prompt in version.prompts.items():
        before = first.prompts.get(name)
        if prompt == before:
            if not json:
                sys.stdout.write(f"prompt {name} of version {version.label} is the one that the run began with\n\n")
            continue
        if json:
            text = None if before is None else before.template
            sys.stdout.write(json_line({"name": name, "text": text, "new_text": prompt.template}))
            continue
        old = [] if before is None else before.template.splitlines()
        lines = prompt.template.splitlines()
        diff = unified_diff(old, lines, f"{first.label} {name}", f"{version.label} {name}", lineterm="")
        head = f"prompt {name} ({prompt.engine})"
        shown = [head, *diff, "", f"text to paste, where the agent has its template {name}:", *lines, "", ""]
        sys.stdout.write("\n".join(map(printable, shown)))


def _show_found(found: "FoundPrompts", out: Path, failed: int, rollouts: int, *, json: bool) -> None:
    if json:
        for component in found.edits.components:
            sys.stdout.write(json_line(component))
    else:
        for component in found.edits.components:
            first = " ".join(component.text.split())
            shown = first if len(first) <= SHOWN_CHARACTERS else f"{first[: SHOWN_CHARACTERS - 1]}…"
            calls = f"{component.calls} call{'s' if component.calls != 1 else ''}"
            sys.stdout.write(printable(f"{component.name}  ({component.place}, {calls})\n  {shown}") + "\n")
        if found.edits.components:
            count = len(found.edits.components)
            components = "1 component" if count == 1 else f"{count} components"
            verb = "is" if count == 1 else "are"
            sys.stdout.write(f"{components} of {found.calls} calls {verb} in {printable(str(out))}\n")
    for note in found.notes:
        sys.stderr.write(f"leyden: {printable(note)}\n")
    if failed:
        sys.stderr.write(
            f"leyden: {failed} of {rollouts} rollouts failed, so calls may be missing: `leyden dev` shows why\n"
        )


def _changes(component: "PromptComponent") -> list[str]:
    """Return the lines that show a changed component: its place, the difference, and the new text."""
    from leyden.core.data.prompts.template import TextTemplate

    caller = " ".join(
        f"{kind} {value}" for kind, value in (("agent", component.agent), ("node", component.node)) if value
    )
    old, new = component.text.splitlines(), component.current.splitlines()
    template = TextTemplate.parse(component.current)
    if template.names:
        variables = ", ".join(f"{{{name}}}" for name in sorted(template.variables))
        paste, how = component.current, f"text to paste (where it has {variables}, keep what the agent puts there):"
    else:
        paste, how = template.fixed[0], "text to paste:"
    head = f"{component.name}: {component.place}" + (f" of {caller}" if caller else "")
    diff = unified_diff(old, new, "the agent's text", "new text", lineterm="")
    return [printable(line) for line in (head, *diff, "", how, *paste.splitlines())]
