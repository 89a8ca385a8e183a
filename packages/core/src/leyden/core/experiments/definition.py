"""Definition of an experiment: what a user writes in its file, as typed values.

`cli.experiment_file` reads the file and raises the errors that name a place in it.
"""

from typing import Any, Literal

import msgspec


class Expected(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Expectation that is written down before the runs."""

    because: str
    """Reason."""
    arm: str | None = None
    """Arm that should end highest; None if no arm is expected to."""


class Measure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Number by which arms are compared."""

    held_out: str | None = None
    """Name of a held-out set; None: the first one of the run file."""
    sampling: Literal["greedy", "sampled"] = "greedy"
    """`greedy`: evaluations with the agent's own sampling, usually temperature 0. `sampled`: those with the training
    sampling."""
    score: Literal["mean_reward", "success"] = "mean_reward"
    """`success`: share of the tasks that earned at least `success_at`."""
    success_at: float = 1.0


class Preparation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that is made before the runs that use it: a policy, a store of rollouts, a file of tasks."""

    run: dict[str, Any] | None = None
    """Settings of a run, on top of the run file's; its exported policy is used."""
    command: str | tuple[str, ...] | None = None
    """Command that writes into `{folder}`, which is empty; `{seed}` is the seed."""
    seeds: Literal["each", "shared"] = "each"
    """Whether it is made for each seed, or once for all."""


class Experiment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Experiment: arms that differ in their settings, each run with every seed."""

    title: str
    question: str
    expected: Expected
    arms: dict[str, dict[str, Any] | None]
    """Settings of each arm, on top of `settings` and of the run file."""
    run: str | None = None
    """Run file, as `leyden train --config` takes it."""
    settings: dict[str, Any] = {}
    """Settings of all runs, on top of the run file."""
    seeds: tuple[int, ...] = (0, 1, 2)
    measure: Measure = Measure()
    baseline: str | None = None
    """Arm to which the others are compared; None: the first one."""
    prepare: dict[str, Preparation] = {}
    """What is made first, by name; `$NAME` in an arm's settings is its folder."""
    metrics: tuple[str, ...] = ()
    """Metrics of the steps that the report also shows, as means over all steps."""

    @property
    def compared_to(self) -> str:
        """Name of the baseline arm."""
        return self.baseline or next(iter(self.arms))
