"""`leyden dev`: a few rollouts of an agent, every span shown, nothing trained."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from leyden.core.cli.command import given_command
from leyden.core.cli.options import (
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
    PromptsOption,
    ProviderKeyEnvOption,
    ProviderOption,
    StoreOption,
    TasksOption,
    TimeoutOption,
    answering,
    check_policy_device,
    chosen_agent,
    read_env,
    with_prompts,
)
from leyden.core.data.encoding.json_line import json_line
from leyden.core.data.failure import failure_of
from leyden.core.data.isolation import check_isolation
from leyden.core.data.similar_messages import Tally
from leyden.core.errors import UsageError
from leyden.core.masking import printable

if TYPE_CHECKING:
    from leyden.core.trainer.rollouts.recorded import RecordedRollout


def dev(
    context: typer.Context,
    agent: Annotated[str | None, typer.Argument(help="path/to/file.py:attribute or package.module:attribute")] = None,
    *,
    tasks: TasksOption,
    count: Annotated[int, typer.Option("--count", "-n", help="Run the first so many tasks.")] = 3,
    reward: Annotated[str | None, typer.Option(help="Reward function `score(task, result)`, as file.py:score.")] = None,
    input: InputOption = None,
    hook: HookOption = None,
    policy: PolicyOption = None,
    endpoint: EndpointOption = None,
    model: ModelOption = None,
    api_key_env: ApiKeyEnvOption = None,
    provider: ProviderOption = None,
    provider_key_env: ProviderKeyEnvOption = None,
    prompts: PromptsOption = None,
    device: DeviceOption = "cpu",
    concurrency: ConcurrencyOption = 4,
    isolation: IsolationOption = "auto",
    timeout: TimeoutOption = 120.0,
    env: EnvOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Run AGENT, or COMMAND, on a few tasks and show each rollout as a tree. Exit code 1 when a rollout failed."""
    from leyden.core.trainer.rollouts.tasks import load_tasks
    from leyden.core.trainer.services.dev import DevPlan, dry_run
    from leyden.core.trainer.serving.provider import read_provider

    named = chosen_agent(agent, given_command(context))
    if named is None:
        raise UsageError("missing AGENT, or -- COMMAND; see `leyden dev --help`")
    resources = with_prompts(answering(policy, endpoint, model, api_key_env), prompts)
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
        store=store,
    )
    results = dry_run(plan, named, load_tasks(tasks, count), reward, show=not json)
    if json:
        for result in results:
            sys.stdout.write(json_line(result))
    if failures := _failures(results):
        sys.stderr.write(f"leyden: {printable(failures)}\n")
    return 0 if all(result.rollout.status == "succeeded" for result in results) else 1


def _failures(results: "list[RecordedRollout]") -> str:
    """How many rollouts failed, and of what, in one line; empty where none did."""
    from leyden.core.runner.attempts.error_text import with_key_advice

    tally = Tally()
    for result in results:
        if result.rollout.status != "succeeded":
            failure = failure_of(result.attempts[-1][0]) if result.attempts else None
            text = f"the rollout was {result.rollout.status}" if failure is None else failure.text
            tally.add(text, result.rollout.rollout_id)
    if not tally.total:
        return ""
    return f"{tally.total} of {len(results)} rollouts failed: {with_key_advice(tally.line())}"
