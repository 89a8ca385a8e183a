"""`leyden train`: train the model inside an agent, or go on with a run."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leyden.core.cli.options import (
    RUNS,
    HookOption,
    InputOption,
    JsonOption,
    NameOption,
    QuietOption,
    RunsOption,
    SeedOption,
    chosen_agent,
    default_name,
    given_command,
    read_attribute_match,
    read_frozen,
    read_held_out,
    read_settings,
    read_update,
)
from leyden.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from leyden.core.trainer.report import RunReport

AgentArgument = Annotated[str | None, typer.Argument(help="path/to/file.py:attribute or package.module:attribute")]


def train(
    context: typer.Context,
    agent: AgentArgument = None,
    *,
    tasks: Annotated[Path | None, typer.Option(help="Training tasks, JSON Lines.")] = None,
    val: Annotated[list[Path] | None, typer.Option(help="Held-out tasks, JSON Lines; may be given twice.")] = None,
    reward: Annotated[str | None, typer.Option(help="Reward function `score(task, result)`, as file.py:score.")] = None,
    input: InputOption = None,
    hook: HookOption = None,
    policy: Annotated[str | None, typer.Option(help="Hugging Face causal LM to train: folder or hub name.")] = None,
    name: NameOption = None,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Go on with this run.")] = None,
    steps: Annotated[int | None, typer.Option(help="Weight updates to take. [default: 25]")] = None,
    seed: SeedOption = 0,
    tasks_per_step: Annotated[int, typer.Option(help="Tasks drawn for each step.")] = 16,
    group_size: Annotated[int, typer.Option(help="Rollouts of each task.")] = 8,
    learning_rate: Annotated[float | None, typer.Option(help="The same as --set learning_rate=...")] = None,
    temperature: Annotated[float, typer.Option(help="Of training; overrides the agent's own.")] = 1.0,
    agent_match: Annotated[str | None, typer.Option(help="Train only agents or nodes this regex finds.")] = None,
    span_match: Annotated[
        str | None, typer.Option(help="Train only calls in or below a span this regex finds.")
    ] = None,
    attribute_match: Annotated[
        list[str] | None, typer.Option(metavar="NAME=REGEX", help="The same, by an attribute of such a span.")
    ] = None,
    predicate: Annotated[
        str | None, typer.Option(help="The same, by `predicate(span, above)`, as file.py:name.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Agent processes.")] = 1,
    concurrency: Annotated[int, typer.Option(help="Rollouts at once in each agent process.")] = 24,
    timeout: Annotated[float, typer.Option(help="Seconds one attempt may take.")] = 120.0,
    device: Annotated[str, typer.Option(help="cpu, or cuda for one GPU.")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="Torch threads of the engine. [default: by size]")] = None,
    sampled_eval: Annotated[bool, typer.Option(help="Evaluate with the training sampling too.")] = True,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 1,
    keep_checkpoints: Annotated[int, typer.Option(help="Latest checkpoints that stay.")] = 2,
    tracker: Annotated[str | None, typer.Option(help="Also log to: tensorboard.")] = None,
    algorithm: Annotated[str, typer.Option(help="A registered algorithm, or an import string.")] = "lightning_rl",
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value of the algorithm's configuration.")] = None,
    route: Annotated[
        list[str] | None, typer.Option(metavar="PATTERNS", help="agent=judge,to=provider: where model calls go.")
    ] = None,
    frozen: Annotated[
        list[str] | None, typer.Option(metavar="NAME=POLICY", help="A policy that routes may name, and never learns.")
    ] = None,
    update: Annotated[str, typer.Option(help="New weights: swap between tokens, or drain calls first.")] = "swap",
    record_within: Annotated[float, typer.Option(help="Seconds a call's record may wait; 0: durable at once.")] = 0.0,
    engine_log: Annotated[bool, typer.Option("--engine-log", help="Keep the engine's own record of calls.")] = False,
    runs: RunsOption = RUNS,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Train the model inside AGENT, or COMMAND, on TASKS, without changing the agent."""
    from leyden.core.trainer.display import make_display
    from leyden.core.trainer.launch import begin, sit_here
    from leyden.core.trainer.launch import resume as go_on

    sit = sit_here(make_display(quiet=quiet, json=json))
    named = chosen_agent(agent, given_command(context))
    if resume is not None:
        if named is not None or tasks is not None:
            raise UsageError("--resume takes agent and tasks from the run; give only --steps with it")
        _finish(lambda: go_on(runs, resume, steps, sit), resume, runs, quiet=quiet, json=json)
        return
    if named is None or tasks is None or policy is None:
        missing = [n for n, v in {"AGENT": named, "--tasks": tasks, "--policy": policy}.items() if v is None]
        raise UsageError(f"missing {', '.join(missing)}; see `leyden train --help`, or `leyden quickstart`")
    from leyden.core.data.route import parse_routes
    from leyden.core.data.sampling import Sampling
    from leyden.core.trainer.config import EvaluationSet, RunConfig, check_name
    from leyden.core.trainer.tasks import load_tasks

    rows, held_out = load_tasks(tasks), read_held_out(val or [])
    settings = read_settings(set_ or [])
    if learning_rate is not None:
        settings["learning_rate"] = learning_rate
    config = RunConfig(
        name=check_name(name or default_name(named)),
        agent=named,
        policy=policy,
        reward=reward,
        input=input,
        hooks=tuple(hook or ()),
        tasks=str(tasks),
        held_out=tuple(EvaluationSet(name=path.stem, source=str(path)) for path in val or []),
        steps=25 if steps is None else steps,
        tasks_per_step=tasks_per_step,
        group_size=group_size,
        seed=seed,
        sampling=Sampling(temperature=temperature),
        agent_match=agent_match,
        span_match=span_match,
        attribute_match=read_attribute_match(attribute_match or []),
        predicate=predicate,
        workers=workers,
        concurrency=concurrency,
        timeout_seconds=timeout,
        evaluate_sampled=sampled_eval,
        checkpoint_every=checkpoint_every,
        keep_checkpoints=keep_checkpoints,
        device=device,
        threads=threads,
        tracker=tracker,
        algorithm=algorithm,
        algorithm_config=settings,
        routes=parse_routes(route or []),
        frozen=read_frozen(frozen or []),
        update=read_update(update),
        record_within=record_within,
        engine_log=engine_log,
    )
    _finish(lambda: begin(runs, config, rows, held_out, sit), config.name, runs, quiet=quiet, json=json)


def _finish(work: "Callable[[], RunReport]", name: str, runs: Path, *, quiet: bool, json: bool) -> None:
    """Do the work; say how to go on when it is stopped, and show what it came to."""
    try:
        report = work()
    except KeyboardInterrupt:
        where = "" if runs == RUNS else f" --runs {runs}"
        sys.stderr.write(f"\nstopped; go on with: leyden train --resume {name}{where}\n")
        raise
    if json:
        import msgspec

        sys.stdout.write(msgspec.json.encode({"event": "report", **msgspec.to_builtins(report)}).decode() + "\n")
    elif not quiet:
        _show(report, runs / name)


def _show(report: "RunReport", folder: Path) -> None:
    from rich.console import Console

    from leyden.core.trainer.curve import terminal_curve
    from leyden.core.trainer.folder import RunFolder
    from leyden.core.trainer.report import closing_table

    console = Console()
    curve = terminal_curve(RunFolder(folder).metrics())
    if curve:
        console.print(curve, highlight=False, markup=False)
    console.print(closing_table(report))
    console.print(f"trained policy: {folder / 'policy'}   reward curve: {folder / 'reward_curve.png'}", highlight=False)
