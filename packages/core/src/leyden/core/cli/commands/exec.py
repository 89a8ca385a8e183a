"""`leyden exec`: one command, of any language, as a rollout."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from leyden.core.cli.command import given_command
from leyden.core.cli.options import (
    ApiKeyEnvOption,
    DeviceOption,
    EndpointOption,
    EnvOption,
    JsonOption,
    ModelOption,
    PolicyOption,
    PromptsOption,
    ProviderKeyEnvOption,
    ProviderOption,
    StoreOption,
    answering,
    check_policy_device,
    read_env,
    with_prompts,
)
from leyden.core.data.encoding.json_line import json_line
from leyden.core.data.rollout import Task
from leyden.core.errors import UsageError


def run_command(
    context: typer.Context,
    *,
    policy: PolicyOption = None,
    endpoint: EndpointOption = None,
    model: ModelOption = None,
    api_key_env: ApiKeyEnvOption = None,
    provider: ProviderOption = None,
    provider_key_env: ProviderKeyEnvOption = None,
    prompts: PromptsOption = None,
    device: DeviceOption = "cpu",
    task: Annotated[str | None, typer.Option(help="The task as JSON, or @FILE with it.")] = None,
    reward: Annotated[str | None, typer.Option(help="Reward function `score(task, result)`, as file.py:score.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Time limit of COMMAND in seconds. [default: no limit]")] = None,
    env: EnvOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Run COMMAND as one rollout: its model calls are answered and recorded, and shown as a tree at the end.

    The tree goes to the standard error; the exit code is COMMAND's own, or 124 when it took too long.
    """
    command = given_command(context)
    if not command:
        raise UsageError("there is no command: write it after --, as in `leyden exec --policy PATH -- node agent.js`")
    secrets = read_env(env or [], command)
    resources = with_prompts(answering(policy, endpoint, model, api_key_env), prompts)
    check_policy_device(device, policy)
    given: Task = {} if task is None else read_task(task)
    from leyden.core.trainer.services.dev import DevPlan, dry_run
    from leyden.core.trainer.services.foreground_command import ForegroundCommand
    from leyden.core.trainer.serving.provider import read_provider

    agent = ForegroundCommand(command, secrets, has_task=task is not None, keep_output=reward is not None)
    plan = DevPlan(
        policy=policy,
        device=device,
        resources=resources,
        provider=read_provider(provider, provider_key_env),
        timeout_seconds=timeout,
        store=store,
    )
    (recorded,) = dry_run(plan, agent, [given], reward, show=False)
    code = agent.outcome(recorded)
    _show(recorded, json=json)
    return code


def read_task(given: str) -> Task:
    """A task from JSON, or from the file that `@path` names; raises UsageError when it is neither object nor text."""
    import json

    text = given
    if given.startswith("@"):
        try:
            text = Path(given[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--task: {given[1:]} cannot be read: {error}") from None
    try:
        task: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"--task takes JSON, or @file: {error.msg} at column {error.colno} of {text[:40]!r}") from None
    if type(task) not in (dict, str):
        raise UsageError(f"--task takes a JSON object or a string, not {text.strip()[:40]!r}")
    return task


def _show(recorded: Any, *, json: bool) -> None:
    if json:
        sys.stderr.write(json_line(recorded))
        return
    from rich.console import Console

    from leyden.core.trainer.rollouts.tree import rollout_tree

    Console(stderr=True).print(rollout_tree(recorded), highlight=False)
