"""Preflight: runs the checks that load nothing, then those of the first rollouts and of a rehearsed update."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from leyden.core.algorithm.policy_partition import split_by_policy
from leyden.core.errors import CheckFailed
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.preflight.calls import (
    check_calls,
    check_prompts,
    check_rollouts,
    check_sampling,
    check_selection,
    check_tokens,
)
from leyden.core.trainer.preflight.evidence import Difference, Evidence
from leyden.core.trainer.preflight.learning import check_gradient, check_log_probabilities, check_served
from leyden.core.trainer.preflight.machine import free_memory
from leyden.core.trainer.preflight.memory import MemoryEstimate, check_memory, memory_need
from leyden.core.trainer.preflight.options import OptionReads, check_options
from leyden.core.trainer.preflight.rehearsal import rehearse
from leyden.core.trainer.preflight.report import CheckReport, CheckResult, save_report, unchecked, worst_first
from leyden.core.trainer.preflight.rewards import check_rewards, check_spread, check_spread_of_tasks
from leyden.core.trainer.preflight.task_leaks import check_isolation
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.serving.serving import SERVED_GAP, Served

if TYPE_CHECKING:
    from leyden.core.policy.model import PolicyModel
    from leyden.core.trainer.context.run_context import RunContext

MOST_CALLS = 128
"""Maximum number of calls whose log-probabilities are computed again."""
CHECKS = (
    check_rollouts,
    check_isolation,
    check_calls,
    check_tokens,
    check_selection,
    check_sampling,
    check_prompts,
    check_rewards,
    check_spread,
    check_log_probabilities,
    check_gradient,
    check_served,
)
"""Checks of the evidence, in the order of the report."""
CHECKS_OF_ENDPOINT = (check_rollouts, check_isolation, check_calls, check_rewards, check_spread_of_tasks)
"""Checks of the evidence in a run without a policy."""
NAMES_OF_ENDPOINT = ("options", "rollouts", "isolation", "calls", "rewards", "spread")
NAMES = (
    *("memory", "options", "rollouts", "isolation", "calls", "tokens", "selection", "sampling", "prompts"),
    *("rewards", "spread", "log-probabilities", "gradient", "served weights"),
)
"""Names of all checks, in the order of a report."""


def _checks(config: RunConfig) -> Sequence[Callable[[Evidence], CheckResult]]:
    return CHECKS if config.policies else CHECKS_OF_ENDPOINT


def measure_memory(config: RunConfig) -> MemoryEstimate:
    """Return the memory that the run needs and the free memory. Raises UsageError for a policy that cannot be read."""
    from leyden.core.policy.size import PolicySize

    option_reads = OptionReads(config.algorithm, config.algorithm_config)
    frozen = [PolicySize.of(source) for source in config.frozen.values()]
    sizes = [PolicySize.of(source) for source in config.policies.values()]
    options = [option_reads.algorithm.options_of(name) for name in config.policies]
    return MemoryEstimate(need=memory_need(config, options, sizes, frozen), free=free_memory(config.device))


def before_loading(config: RunConfig, memory: MemoryEstimate | None) -> list[CheckResult]:
    """Run the checks that load nothing: memory, if the run has a policy, and options.

    Raises UsageError for an unreadable setting.
    """
    checked = [] if memory is None else [check_memory(memory.need, memory.free, config)]
    return [*checked, check_options(config)]


def not_loaded(config: RunConfig, before: Sequence[CheckResult]) -> CheckReport:
    """Return the report for a failed check before loading; all later checks are unchecked."""
    because = f"nothing was loaded, see {worst_first(before)[0].name}"
    known = {result.name: result for result in before}
    names = NAMES if config.policies else NAMES_OF_ENDPOINT
    return CheckReport(results=tuple(known.get(name) or unchecked(name, because) for name in names))


async def preflight(context: "RunContext", before: Sequence[CheckResult]) -> CheckReport:
    """Run the first rollouts of a new run, rehearse its first update, and check both.

    `before` are the results of `before_loading`. Afterwards the engine serves the initial weights again, as version 0.
    In a run without a policy, only the first rollouts are run.
    Raises UsageError for errors that the user must fix first, such as a reward function that raises.
    """
    began, config = time.monotonic(), context.config
    context.journal.display.phase("check")
    evidence = Evidence(
        config,
        context.serving.context_length,
        agents_output=context.collector.agents_output,
        why_command=context.journal.folder.command("why"),
    )
    option_reads = OptionReads(config.algorithm, config.algorithm_config)
    evidence.trains_prompts = option_reads.algorithm.trains_prompts
    await rehearse(option_reads.algorithm.rehearsed(), context, evidence)
    if evidence.rehearsal.metrics is not None:
        evidence.rehearsal.unread = option_reads.unread
    if evidence.transitions:
        models, served = context.models.prepared(), context.serving.policies
        evidence.difference = await asyncio.to_thread(_difference, models, served, evidence)
    memory = [result for result in before if result.name == "memory"]
    results = [*memory, check_options(config, evidence.rehearsal)]
    return CheckReport(
        results=(*results, *(check(evidence) for check in _checks(config))),
        rollouts=int(evidence.total("rollouts")),
        seconds=time.monotonic() - began,
        rollout_seconds=sum(collected.seconds for collected in evidence.batches),
    )


def conclude(report: CheckReport, context: "RunContext") -> None:
    """Write the report into the run's folder and show its warnings; raises CheckFailed if the run would not learn."""
    context.journal.report.seconds_by_phase["check"] = report.seconds - report.rollout_seconds
    context.journal.display.show(report.summary())
    for result in (one for one in worst_first(report.results) if one.status == "warning"):
        context.journal.display.show(f"check: {result.status}: {result.name}: {result.seen}. {result.change}")
    if report.failures:
        raise CheckFailed(report.complaint())
    save_report(report, context.journal.folder.check_file)


def is_due(folder: RunFolder, config: RunConfig) -> bool:
    """Whether a session begins with the check: not if it resumes a run, takes no step, or `check` is off."""
    return config.check and config.steps > 0 and not folder.check_file.exists() and not folder.checkpoints.exists()


def _difference(models: "Mapping[str, PolicyModel]", served: "Mapping[str, Served]", evidence: Evidence) -> Difference:
    """Return the difference of the policy with the largest mean difference."""
    from leyden.core.policy.probe import recomputed

    found: list[Difference] = []
    for name, calls in split_by_policy(evidence.transitions, models, lambda call: call).items():
        some = calls[:: -(-len(calls) // MOST_CALLS)]
        apart_N = np.abs(recomputed(models[name], some))
        limit = max(SERVED_GAP[models[name].precision], SERVED_GAP[served[name].engine.precision])
        mean, largest = float(apart_N.mean()), float(apart_N.max())
        found.append(Difference(mean=mean, largest=largest, tokens=len(apart_N), limit=limit))
    return max(found, key=lambda difference: difference.mean)
