"""Records of training runs: the run itself, metrics of its steps, and versions of its policies.

An experiment is a set of runs that are compared. Does not handle the run's files.
"""

from typing import Any, Literal

import msgspec

from leyden.core.data.route import POLICY

CANDIDATE_NOTE = "candidate/"
"""Prefix of the notes of a step that describe candidates of a prompt search, by number, each as JSON."""
PROMPT_NOTE = "prompt/"
"""Prefix of the notes of a step that hold the texts which became the best ones, by the prompt's name."""

RunStatus = Literal["running", "succeeded", "failed", "stopped"]

RUN_MOVES: dict[RunStatus, frozenset[RunStatus]] = {
    "running": frozenset({"succeeded", "failed", "stopped"}),
    "succeeded": frozenset({"running", "stopped"}),
    "failed": frozenset({"running", "stopped"}),
    "stopped": frozenset({"running"}),
}
"""Allowed changes: from each run status, its possible next statuses. A status may always be set to itself.

An ended run can be resumed. It becomes `stopped` when it is rolled back to an earlier version. A run whose process was
killed stays `running`; an old `update_time` shows that.
"""

FINISHED_RUN: frozenset[RunStatus] = frozenset({"succeeded", "failed", "stopped"})


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One training run. Times are Unix seconds; a start time of 0 lets the store set it."""

    run_id: str
    """Only letters, digits, `.`, `_` and `-`."""
    name: str
    """Name for display; several runs of a store may have the same name."""
    experiment: str | None = None
    """Name of the set of runs that this run is compared with."""
    status: RunStatus = "running"
    config: dict[str, Any] = {}
    """Plain values. The writer has removed every credential."""
    metadata: dict[str, Any] = {}
    start_time: float = 0.0
    end_time: float | None = None
    """Time of the last end; None while the run is running."""
    update_time: float = 0.0
    """Time of the last write to the run, its metrics or its versions. The store sets it."""


class StepMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one step of a run."""

    step: int
    time: float = 0.0
    """Unix seconds of the last addition; 0 lets the store set it."""
    values: dict[str, float] = {}
    """Finite numbers by name."""
    notes: dict[str, str] = {}
    """Texts about the step by name, such as the alerts that began with it."""


class PolicyVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a policy that a run trains. Times are Unix seconds; a `create_time` of 0 lets the store set it."""

    run_id: str
    policy: str = POLICY
    """Only letters, digits, `.`, `_` and `-`."""
    version: int
    """Number of weight updates up to this version; 0 is the policy with which the run began."""
    parent: int | None = None
    """Version from which this version was trained; None for the first."""
    path: str | None = None
    """Place of the weights: a folder of the machine that trained them, or a hub name; None where they are not kept."""
    note: str | None = None
    metrics: dict[str, float] = {}
    """Finite numbers by name: metrics of the step that made the version, and its rewards on held-out sets."""
    metadata: dict[str, Any] = {}
    create_time: float = 0.0
    update_time: float = 0.0
    """Time of the last write of this record. The store sets it."""
