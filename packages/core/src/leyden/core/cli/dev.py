"""`leyden dev`: a few rollouts of an agent, every span shown, nothing trained."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from leyden.core.cli.options import (
    ApiKeyEnvOption,
    EndpointOption,
    HookOption,
    InputOption,
    JsonOption,
    ModelOption,
    PolicyOption,
    answering,
    chosen_agent,
    given_command,
)
from leyden.core.errors import UsageError


def dev(
    context: typer.Context,
    agent: Annotated[str | None, typer.Argument(help="path/to/file.py:attribute or package.module:attribute")] = None,
    *,
    tasks: Annotated[Path, typer.Option(help="Tasks, JSON Lines.")],
    count: Annotated[int, typer.Option("--count", "-n", help="Run the first so many tasks.")] = 3,
    reward: Annotated[str | None, typer.Option(help="Reward function `score(task, result)`, as file.py:score.")] = None,
    input: InputOption = None,
    hook: HookOption = None,
    policy: PolicyOption = None,
    endpoint: EndpointOption = None,
    model: ModelOption = None,
    api_key_env: ApiKeyEnvOption = "OPENAI_API_KEY",
    timeout: Annotated[float, typer.Option(help="Seconds one attempt may take.")] = 120.0,
    json: JsonOption = False,
) -> int:
    """Run AGENT, or COMMAND, on a few tasks and show each rollout as a tree. Exit code 1 when a rollout failed."""
    from leyden.core.trainer.dev import DevPlan, dry_run
    from leyden.core.trainer.tasks import load_tasks

    if count < 1:
        raise UsageError(f"--count must be at least 1, not {count}")
    named = chosen_agent(agent, given_command(context))
    if named is None:
        raise UsageError("missing AGENT, or -- COMMAND; see `leyden dev --help`")
    resources = answering(policy, endpoint, model, api_key_env)
    plan = DevPlan(policy=policy, resources=resources, timeout_seconds=timeout, input=input, hooks=tuple(hook or ()))
    results = dry_run(plan, named, load_tasks(tasks)[:count], reward, show=not json)
    if json:
        import msgspec

        for result in results:
            sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    return 0 if all(result.rollout.status == "succeeded" for result in results) else 1
