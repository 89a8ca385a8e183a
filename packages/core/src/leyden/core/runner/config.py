"""`RunnerConfig`: the settings of a runner, apart from the agent that it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from leyden.core.data.route import Route
from leyden.core.runner.attempts.hooks import Hook
from leyden.core.runner.user_code.input_function import InputFunction
from leyden.core.runner.user_code.reward import RewardFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """Settings of one runner. The default values are the tested ones."""

    worker_id: str
    """Name of this runner in the store. No two live runners may share a name."""
    gateway_url: str
    """Root URL of the gateway, without a trailing slash."""
    key: bytes | None = field(default=None, repr=False)
    """The gateway's signing key, with which the runner makes the attempts' tokens.

    Set only where the runner is in the gateway's own process. None: the store's answer to a claim contains the token.
    """
    routes: tuple[Route, ...] = ()
    """Rules that send model calls of the agent to a policy or to its own provider. The first matching rule applies."""
    concurrency: int = 16
    """Largest number of attempts that run at the same time."""
    reward: RewardFunction | None = None
    """`score(task, result)`; None when agents return or emit their own rewards."""
    reward_weights: Mapping[str, float] | None = None
    """Weight of each dimension of the reward, by its name."""
    input: InputFunction | None = None
    """`make(task)`: returns the agent's input. None: the adapter derives the input from the task."""
    hooks: tuple[Hook, ...] = ()
    isolation: str = ""
    """One line for the worker's record: how attempts are isolated from each other, and why."""
    poll_seconds: float = 0.5
    """Longest time that one claim waits for work. It is also the longest delay of the runner's stop."""
    heartbeat_seconds: float = 5.0
    """Seconds between heartbeats of running attempts.

    Must be well below the `unresponsive_seconds` of the rollouts.
    """
    cancel_seconds: float = 1.0
    """Seconds that a cancelled async agent gets to end. After that the runner no longer waits for it."""

    def __post_init__(self) -> None:
        """Raise ValueError for an empty signing key or a concurrency below 1."""
        if self.key == b"":
            raise ValueError(
                "the gateway's signing key is empty; leave key out if the store sends attempt tokens with claimed "
                "rollouts"
            )
        if self.concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {self.concurrency}")
