"""LightningRL with a clock around each of the verbs it is written in. It learns exactly what LightningRL learns."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from leyden.core.algorithm.base import Context
from leyden.core.algorithm.lightning_rl import LightningRL, LightningRLConfig
from leyden.core.data.transition import TrajectoryGroup
from steps.meter import Meter, family_cpu_seconds


class TimedConfig(LightningRLConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """LightningRL's, and where the times go."""

    steps_file: str


class TimedLightningRL(LightningRL):
    """Counts rollouts, update, publish and checkpoint apart; a step ends with its checkpoint."""

    Config = TimedConfig

    async def run(self, context: Context) -> None:
        """Train; the context's verbs are timed."""
        config = cast("TimedConfig", self.config)
        meter = Meter(Path(config.steps_file), family_cpu_seconds)
        collect, compute, log, checkpoint = context.collect, context.compute, context.log, context.checkpoint

        async def timed_collect() -> list[TrajectoryGroup]:
            with meter.phase("rollouts"):
                groups = await collect()
            count(meter, groups)
            return groups

        async def timed_compute(phase: str, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
            with meter.phase(phase):
                return await compute(phase, function, *given, **named)

        def noted(metrics: Any) -> None:
            meter.step.tokens_trained += int(metrics["tokens_trained"])
            meter.step.reward = float(metrics["reward"])
            log(metrics)

        async def last(updater: Any) -> None:
            await timed(meter, "checkpoint", checkpoint)(updater)
            meter.end_step()

        verbs: dict[str, Callable[..., Any]] = {
            "collect": timed_collect,
            "compute": timed_compute,
            "publish": timed(meter, "publish", context.publish),
            "log": noted,
            "checkpoint": last,
        }
        for name, verb in verbs.items():
            setattr(context, name, verb)
        await super().run(context)


def timed(meter: Meter, phase: str, verb: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """Return `verb` with its time counted under `phase`."""

    async def call(given: Any) -> Any:
        with meter.phase(phase):
            return await verb(given)

    return call


def count(meter: Meter, groups: list[TrajectoryGroup]) -> None:
    """Count what was collected."""
    for group in groups:
        for trajectory in group.trajectories:
            meter.step.rollouts += 1
            meter.step.prompt_tokens += sum(len(call.prompt_ids) for call in trajectory.transitions)
            meter.step.response_tokens += sum(len(call.response_ids) for call in trajectory.transitions)
