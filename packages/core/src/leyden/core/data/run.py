"""Training runs as records: what a run is, what was measured at its steps, and the versions of its policies.

An experiment is a set of runs that are compared. Knows nothing of a run's files, nor of who trains.
"""

from typing import Any, Literal

import msgspec

from leyden.core.data.route import POLICY

RunStatus = Literal["running", "succeeded", "failed", "stopped"]

RUN_MOVES: dict[RunStatus, frozenset[RunStatus]] = {
    "running": frozenset({"succeeded", "failed", "stopped"}),
    "succeeded": frozenset({"running", "stopped"}),
    "failed": frozenset({"running", "stopped"}),
    "stopped": frozenset({"running"}),
}
"""From each run status, the statuses it may become: what has ended may be gone on with, and is stopped once it is taken
back to an earlier version. A status may always be set to itself. A run whose process was killed stays `running`; its
`update_time` tells."""

FINISHED_RUN: frozenset[RunStatus] = frozenset({"succeeded", "failed", "stopped"})


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One training run. Times are Unix seconds; a start time of 0 lets the store set it."""

    run_id: str
    """Letters, digits, `.`, `_` and `-`."""
    name: str
    """As people call it; several runs of a store may have the same."""
    experiment: str | None = None
    """Name of the set of runs that it is compared with."""
    status: RunStatus = "running"
    config: dict[str, Any] = {}
    """Plain values, from which whoever writes them has taken every credential."""
    metadata: dict[str, Any] = {}
    start_time: float = 0.0
    end_time: float | None = None
    """When it ended last; None while it runs."""
    update_time: float = 0.0
    """When anything of the run was written last, its metrics and versions included. The store sets it."""


class StepMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured at one step of a run."""

    step: int
    time: float = 0.0
    """Unix seconds of what was added last; 0 lets the store set it."""
    values: dict[str, float] = {}
    """Finite numbers by name."""
    notes: dict[str, str] = {}
    """What there is to say of the step, such as the alerts that began with it, by name."""


class PolicyVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a policy that a run trains. Times are Unix seconds; a `create_time` of 0 lets the store set it."""

    run_id: str
    policy: str = POLICY
    """Letters, digits, `.`, `_` and `-`."""
    version: int
    """The number of weight updates that led to it; 0 is the policy the run began with."""
    parent: int | None = None
    """The version it was trained from; None for the first."""
    path: str | None = None
    """Where its weights lie: a folder of the machine that trained it, or a hub name; None where they are not kept."""
    note: str | None = None
    metrics: dict[str, float] = {}
    """Finite numbers by name: those of the step that made it, and what it earned on held-out sets."""
    metadata: dict[str, Any] = {}
    create_time: float = 0.0
    update_time: float = 0.0
    """When the record was written last. The store sets it."""
