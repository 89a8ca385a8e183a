"""One session of a run: starts policies and agents, runs the algorithm, and writes the results."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from leyden.core.algorithm.base import Algorithm
from leyden.core.algorithm.external_loop import ExternalLoopAlgorithm
from leyden.core.algorithm.registry import make_algorithm
from leyden.core.data.resources import LLM, NamedResources
from leyden.core.data.rollout import Task
from leyden.core.errors import CheckFailed, UsageError
from leyden.core.policy.device import bfloat16_warning
from leyden.core.trainer.agents.local import AgentSide, CheckAgents, agents_output, served_resources
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.context.external_loop import ExternalLoopRun
from leyden.core.trainer.context.resource_versions import ResourceVersions
from leyden.core.trainer.context.run_context import RunContext
from leyden.core.trainer.context.run_journal import RunJournal, held_out_curve
from leyden.core.trainer.monitoring.curve import save_curve
from leyden.core.trainer.monitoring.display import Display
from leyden.core.trainer.monitoring.search_plot import save_search
from leyden.core.trainer.monitoring.trackers import Trackers, open_trackers
from leyden.core.trainer.preflight.memory import MemoryEstimate
from leyden.core.trainer.preflight.report import CheckReport, CheckResult, save_report
from leyden.core.trainer.preflight.run import before_loading, conclude, is_due, measure_memory, not_loaded, preflight
from leyden.core.trainer.rollouts.collector import Collector
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.prompts.files import export_prompts
from leyden.core.trainer.run_folder.prompts.search import (
    changed_prompts,
    held_out_points,
    read_prompt_search,
    result_of,
)
from leyden.core.trainer.run_folder.report import RunReport
from leyden.core.trainer.run_folder.sharing.run_owner import owned
from leyden.core.trainer.run_folder.timing import TimeUsage
from leyden.core.trainer.run_folder.weights import export_policies, with_version
from leyden.core.trainer.serving.external import serve_external
from leyden.core.trainer.serving.serving import Serving, serve_endpoint, serve_policies

EXAMPLE: Task = "What is learned here was collected elsewhere."
"""Task of a run without tasks, on which the log-probabilities of engine and trainer are compared."""


async def train(
    folder: RunFolder,
    config: RunConfig,
    agents: AgentSide,
    display: Display,
    resources: NamedResources | None = None,
) -> RunReport:
    """Train: start or resume a run, write its report into the folder, and return it.

    Raises UsageError for errors that the user must fix, including its subclass NothingToLearn.
    """
    began = TimeUsage.now()
    algorithm = make_algorithm(config.algorithm, config.algorithm_config)
    checks = algorithm.needs_rollouts and not algorithm.serves_itself and is_due(folder, config)
    memory = None if algorithm.serves_itself or not config.policies else measure_memory(config)
    if memory is not None:
        display.show(memory.line(config))
        if (line := _bfloat16_warning(config)) is not None:
            display.show(line)
    before = _checked_before(config, memory) if checks else None
    trackers = open_trackers(config.tracker, folder.trackers, config.name, folder.written_config())
    failed = True
    try:
        async with (
            owned(folder, config),
            _open_context(folder, config, algorithm, agents, display, resources, trackers, began) as context,
        ):
            if before is not None and isinstance(context, RunContext):
                conclude(await preflight(context, before), context)
            async with context.journal.recorded():
                await _run(algorithm, context)
                await context.finish()
                display.stop()
                with context.journal.phase("export"):
                    await asyncio.to_thread(_export, folder, config, context)
        failed = False
    finally:
        display.stop()
        trackers.close(failed=failed)
    report = context.journal.report_now()
    folder.write_report(report)
    draw_curve(folder, config, report)
    await context.journal.end_artifacts()
    return report


async def check(
    folder: RunFolder,
    config: RunConfig,
    agents: AgentSide,
    display: Display,
    resources: NamedResources | None = None,
) -> CheckReport:
    """Check that a run would learn, without training it. Writes the report into the folder and returns it.

    Raises UsageError for an algorithm that serves its own policy, which this check does not support.
    """
    algorithm = make_algorithm(config.algorithm, config.algorithm_config)
    if algorithm.serves_itself:
        raise UsageError(f"{config.algorithm} serves and trains in its own processes, which this check cannot examine")
    before = before_loading(config, measure_memory(config) if config.policies else None)
    if any(result.status == "failure" for result in before):
        report = not_loaded(config, before)
    else:
        trackers = open_trackers(None, folder.trackers, config.name, {})
        try:
            opening = _open_context(folder, config, algorithm, agents, display, resources, trackers, TimeUsage.now())
            async with opening as context:
                assert isinstance(context, RunContext)
                report = await preflight(context, before)
        finally:
            display.stop()
    save_report(report, folder.check_file)
    return report


def _bfloat16_warning(config: RunConfig) -> str | None:
    return bfloat16_warning(
        config.device,
        engine=config.engine == "embedded" and config.engine_precision == "bfloat16",
        trainer=config.algorithm_config.get("precision") == "bfloat16",
    )


def _checked_before(config: RunConfig, memory: MemoryEstimate | None) -> list[CheckResult]:
    """Return the results of the checks that load no model; raises CheckFailed if one of them fails."""
    before = before_loading(config, memory)
    if any(result.status == "failure" for result in before):
        raise CheckFailed(not_loaded(config, before).complaint())
    return before


@asynccontextmanager
async def _open_context(
    folder: RunFolder,
    config: RunConfig,
    algorithm: Algorithm,
    agents: AgentSide,
    display: Display,
    resources: NamedResources | None,
    trackers: Trackers,
    began: TimeUsage,
) -> AsyncGenerator[RunContext | ExternalLoopRun]:
    """Context manager: starts policies and agents, and yields the context that the algorithm uses."""
    tasks = folder.tasks() if config.tasks else []
    held_out = {held.name: folder.tasks(held.name) for held in config.held_out}
    collects = algorithm.needs_rollouts and algorithm.takes_batches
    if tasks and collects and len(tasks) < config.tasks_per_step:
        display.show(
            f"{len(tasks)} tasks for the {config.tasks_per_step} of each step: a step runs tasks several times"
        )
    example = tasks[0] if tasks else EXAMPLE
    initial: NamedResources = {**config.prompts, **config.prompt_edits, **(resources or {})}
    key = next((llm.api_key for llm in initial.values() if isinstance(llm, LLM)), None)
    async with _serve(folder, config, algorithm, example, agents, key) as (serving, check_agents):
        model, temperature = _model_name(config), config.sampling.temperature
        versions = ResourceVersions(
            serving.store, initial, lambda given: served_resources(given, serving.address, model, temperature)
        )
        await versions.publish(versions.resources)
        collector = Collector(
            serving.store,
            config,
            tasks=tasks,
            held_out=held_out,
            display=display,
            check_workers=_check_both(serving.check_engines, check_agents),
            flush=serving.flush,
            agents_output=agents_output(config, folder),
        )
        collector.resources_id = versions.resources_id
        collector.prefix = folder.store_location.prefix
        journal = RunJournal(folder, config, display, trackers, began)
        if isinstance(algorithm, ExternalLoopAlgorithm):
            context = ExternalLoopRun(config, journal, serving, collector)
        else:
            context = RunContext(config, journal, serving, collector, versions)
        try:
            yield context
        finally:
            await context.close()


def _model_name(config: RunConfig) -> str:
    """Return the model name that agents get with their LLM resource."""
    return config.endpoint.model_name if config.endpoint is not None else Path(config.policies[config.usual]).name


async def _run(algorithm: Algorithm, context: RunContext | ExternalLoopRun) -> None:
    if isinstance(algorithm, ExternalLoopAlgorithm):
        assert isinstance(context, ExternalLoopRun)
        await algorithm.run_loop(context)
    else:
        assert isinstance(context, RunContext)
        await algorithm.run(context)


@asynccontextmanager
async def _serve(
    folder: RunFolder,
    config: RunConfig,
    algorithm: Algorithm,
    example: Task,
    agents: AgentSide,
    key: str | None,
) -> AsyncGenerator[tuple[Serving, CheckAgents]]:
    """Context manager: starts policies and agents; yields the serving side and a function that checks the agents.

    `key` is the key of the endpoint of a run without a policy, if it was given in Python.
    """
    if isinstance(algorithm, ExternalLoopAlgorithm):
        async with (
            serve_external(folder, config, algorithm) as serving,
            agents(serving.address) as check_agents,
        ):
            yield serving, check_agents
    elif config.endpoint is not None:
        async with serve_endpoint(folder, config, agents, key) as serving_and_check:
            yield serving_and_check
    else:
        async with serve_policies(folder, config, example, agents) as serving_and_check:
            yield serving_and_check


def _check_both(check_engines: Callable[[], None], check_agents: CheckAgents) -> CheckAgents:
    """Return a function that raises if an engine no longer answers or no agent process can be kept alive."""

    async def check() -> None:
        check_engines()
        await check_agents()

    return check


def _export(folder: RunFolder, config: RunConfig, context: RunContext | ExternalLoopRun) -> None:
    """Export the kept version as `policy/` and `prompts/`.

    If the last version is another one, its policy is also exported, as `policy-last/`.
    """
    models, kept = context.models.all(), context.journal.keep_for_good(context.step)
    selection, report = context.journal.selection, context.journal.report
    export_prompts(selection.prompts(kept.version), folder.prompts)
    report.prompts = changed_prompts(selection.texts(0), selection.texts(kept.version))
    report.search = result_of(context.state, report) if isinstance(context, RunContext) else None
    if not models:
        return
    shutil.rmtree(folder.last_policy, ignore_errors=True)
    if kept.version != context.step:
        export_policies(models, config, folder.last_policy)
        versions = selection.versions
        models = {
            name: with_version(model, versions, kept.version, name if config.has_names else None)
            for name, model in models.items()
        }
    export_policies(models, config, folder.policy)


def draw_curve(folder: RunFolder, config: RunConfig, report: RunReport) -> None:
    """Draw the reward curve of a run into a file of its folder."""
    metrics = folder.metrics()
    title = f"{report.name}: {report.rollouts:,} rollouts"
    if report.success_before is not None:
        headline = next(iter(report.held_out.values()))
        title += f", held out {headline.described('before')} → {headline.described('after')}"
    if report.search is None:
        save_curve(metrics, folder.curve_file, title, held_out_curve(metrics))
    else:
        save_search(read_prompt_search(folder, config), folder.curve_file, title, held_out_points(metrics))
