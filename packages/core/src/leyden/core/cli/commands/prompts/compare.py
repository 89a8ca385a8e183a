"""`leyden prompts try`: two prompts or policies on the same tasks, compared in pairs, with what each of them cost."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leyden.core.cli.command import given_command
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
from leyden.core.cli.progress import progress
from leyden.core.data.encoding.json_line import json_line
from leyden.core.data.isolation import check_isolation
from leyden.core.errors import UsageError
from leyden.core.masking import printable

if TYPE_CHECKING:
    from leyden.core.trainer.run_folder.named_policies import NamedPolicy
    from leyden.core.trainer.services.prompt_trial import PairedDifference, Prompts, PromptTrial, Variant, VariantUse

OWN = "the agent's own prompts"
INTERVAL = "95 %"
OUTPUT_CHARACTERS = 300
TASK_CHARACTERS = 120
_VARIANT = (
    "Prompts of variant {}: a prompt file, NAME=FILE for a prompt template, or RUN:VERSION; may be repeated. "
    "[default: the agent's own]"
)

_POLICY = (
    "Answer variant {} with this policy: a Hugging Face model, or RUN or RUN:VERSION of a run. [default: --policy]"
)


def try_(
    context: typer.Context,
    agent: Annotated[str | None, typer.Argument(help="path/to/file.py:attribute or package.module:attribute")] = None,
    *,
    tasks: TasksOption,
    count: Annotated[int, typer.Option("--count", "-n", help="Run the first so many tasks.")] = 20,
    a: Annotated[list[str] | None, typer.Option("--a", metavar="PROMPTS", help=_VARIANT.format("A"))] = None,
    b: Annotated[list[str] | None, typer.Option("--b", metavar="PROMPTS", help=_VARIANT.format("B"))] = None,
    policy_a: Annotated[str | None, typer.Option("--policy-a", metavar="MODEL", help=_POLICY.format("A"))] = None,
    policy_b: Annotated[str | None, typer.Option("--policy-b", metavar="MODEL", help=_POLICY.format("B"))] = None,
    repeats: Annotated[int, typer.Option(help="Run each task so many times with each variant.")] = 1,
    reward: Annotated[str | None, typer.Option(help="Reward function `score(task, result)`, as file.py:score.")] = None,
    show: Annotated[int, typer.Option(help="Show both outputs of so many tasks, those that differ most.")] = 3,
    store: Annotated[
        str | None, typer.Option(metavar="URI", help="Record the rollouts into this store. [default: in memory]")
    ] = None,
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
    runs: RunsOption = RUNS,
    json: JsonOption = False,
) -> int:
    """Run AGENT, or COMMAND, on the same tasks with the prompts or policies of A and of B, and show the difference.

    Exit code 1 when the comparison shows nothing: no text of a variant was replaced, all its rollouts failed, or no
    task has a reward with both variants.
    """
    from leyden.core.trainer.rollouts.tasks import load_tasks
    from leyden.core.trainer.run_folder.named_policies import policy_sources
    from leyden.core.trainer.run_folder.prompts.named import read_variant
    from leyden.core.trainer.services.dev import DevPlan
    from leyden.core.trainer.services.prompts import try_prompts
    from leyden.core.trainer.serving.provider import read_provider

    named = chosen_agent(agent, given_command(context))
    if named is None:
        raise UsageError("missing AGENT, or -- COMMAND; see `leyden prompts try --help`")
    if not (a or b or policy_a or policy_b):
        raise UsageError("give the prompts of one variant or of both, as --b prompts.yaml or --a old.yaml --b new.yaml")
    _check_policies(policy, policy_a, policy_b, endpoint)
    variants = read_variant(a or [], runs, "--a"), read_variant(b or [], runs, "--b")
    resources = answering(policy or policy_a, endpoint, model, api_key_env)
    check_policy_device(device, policy or policy_a)
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
    rows = load_tasks(tasks, count)
    total = 2 * repeats * len(rows)
    named_policies = {"--policy-a": policy_a, "--policy-b": policy_b}
    with (
        policy_sources(named_policies, runs) as policies,
        progress("rollouts", total=total, quiet=json) as on_progress,
    ):
        trial = try_prompts(
            plan,
            named,
            rows,
            reward,
            a=_variant(variants[0], policies[0]),
            b=_variant(variants[1], policies[1]),
            repeats=repeats,
            on_progress=lambda done: on_progress(done, total),
        )
    if json:
        sys.stdout.write(json_line(trial))
    else:
        _show(trial, _named(a, policy_a), _named(b, policy_b), show)
    for note in (*trial.problems, *trial.notes):
        sys.stderr.write(f"leyden: {printable(note)}\n")
    return 1 if trial.problems else 0


def _check_policies(policy: str | None, policy_a: str | None, policy_b: str | None, endpoint: list[str] | None) -> None:
    """Raise UsageError for a policy that would answer nothing, and for a variant that none answers."""
    if policy_a is None and policy_b is None:
        return
    if endpoint:
        raise UsageError("--policy-a and --policy-b have no effect with --endpoint, which answers both variants")
    if policy_a is not None and policy_b is not None:
        if policy is not None:
            raise UsageError("--policy has no effect with both --policy-a and --policy-b: leave it out")
    elif policy is None:
        has, lacks = ("a", "b") if policy_b is None else ("b", "a")
        raise UsageError(f"--policy-{has} answers one variant: give --policy-{lacks} for the other, or --policy")


def _variant(prompts: "Prompts", policy: "NamedPolicy | None") -> "Variant":
    from leyden.core.trainer.services.prompt_trial import Variant

    if policy is None:
        return Variant(prompts=prompts)
    return Variant(prompts=prompts, policy=policy.source, policy_version=policy.version)


def _named(prompts: list[str] | None, policy: str | None) -> str:
    return (" ".join(prompts or []) or OWN) + ("" if policy is None else f", answered by {policy}")


def _show(trial: "PromptTrial", a: str, b: str, most: int) -> None:
    from leyden.core.runner.attempts.error_text import with_key_advice

    _print(f"A: {a}\nB: {b}")
    compared = {"reward": trial.reward, **trial.dimensions}
    rows = [_compared(name, found) for name, found in compared.items() if found is not None]
    if rows:
        _table(("", "tasks", "A", "B", "B - A", INTERVAL, "won, lost, tied", "p"), rows)
    _table(("", "A", "B"), _used(trial.a, trial.b))
    for name, use in (("A", trial.a), ("B", trial.b)):
        if use.failures:
            _print(f"{name}: {use.failed} of {use.rollouts} rollouts failed: {with_key_advice(use.failures)}")
    if trial.cost_unknown:
        _print(f"cost unknown: {trial.cost_unknown}")
    if trial.verdict:
        _print(trial.verdict)
    for pair in trial.largest_differences(most):
        _print(f"\ntask {pair.row + 1}: {_short(pair.task, TASK_CHARACTERS)}")
        for name, reward, output in (("A", pair.a, pair.output_a), ("B", pair.b, pair.output_b)):
            _print(f"  {name} {reward:g}: {_short(output, OUTPUT_CHARACTERS)}")


def _compared(name: str, found: "PairedDifference") -> tuple[str, ...]:
    from leyden.core.trainer.run_folder.versions import reward_text

    means = [reward_text(mean, is_share=found.is_share) for mean in (found.a, found.b)]
    interval = "–" if found.interval is None else f"{found.interval[0]:+.2f}…{found.interval[1]:+.2f}"
    counts = f"{found.wins}, {found.losses}, {found.ties}"
    return (name, str(found.tasks), *means, f"{found.difference:+.3f}", interval, counts, f"{found.p_value:.3f}")


def _used(a: "VariantUse", b: "VariantUse") -> list[tuple[str, str, str]]:
    """Return the rows of what both variants used."""
    return [(name, value, other) for (name, value), (_, other) in zip(_facts(a), _facts(b), strict=True)]


def _facts(use: "VariantUse") -> list[tuple[str, str]]:
    uncounted = f" ({use.uncounted_calls} calls without a count)" if use.uncounted_calls else ""
    return [
        ("rollouts", str(use.rollouts)),
        ("failed", str(use.failed)),
        ("without a reward", str(use.unrewarded)),
        ("model calls", f"{use.calls:,}"),
        ("calls with a replaced text", f"{use.edited_calls:,}" if use.replaced else "–"),
        ("tokens in", "unknown" if use.input_tokens is None else f"{use.input_tokens:,}{uncounted}"),
        ("tokens out", "unknown" if use.output_tokens is None else f"{use.output_tokens:,}{uncounted}"),
        ("seconds per rollout", "unknown" if use.seconds is None else f"{use.seconds:.2f}"),
        ("cost", "unknown" if use.cost is None else f"${use.cost:.4g}"),
    ]


def _short(value: Any, most: int) -> str:
    text = " ".join((value if isinstance(value, str) else json_line(value)).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _table(columns: tuple[str, ...], rows: list[Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from leyden.core.trainer.monitoring.as_it_is import as_it_is

    table = Table()
    for number, column in enumerate(columns):
        justify = "left" if number == 0 else "right"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=column == INTERVAL)
    for row in rows:
        table.add_row(*map(as_it_is, row))
    Console().print(table, highlight=False)


def _print(text: str) -> None:
    sys.stdout.write("\n".join(printable(line) for line in text.split("\n")) + "\n")
