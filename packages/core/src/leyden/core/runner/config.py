"""`RunnerConfig`: how a runner works, as opposed to what it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from leyden.core.data.route import Route
from leyden.core.runner.attempts.hooks import Hook
from leyden.core.runner.user_code.input_function import InputFunction
from leyden.core.runner.user_code.reward import RewardFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """Defaults are the tested setting."""

    worker_id: str
    """Names this runner in the store; no two live runners share one."""
    gateway_url: str
    """Root URL of the gateway, without a trailing slash."""
    key: bytes | None = field(default=None, repr=False)
    """Signs the attempts' tokens, where the runner is in the gateway's own process; None: claims bring them."""
    routes: tuple[Route, ...] = ()
    """Which of the agent's model calls go where; the first that fits decides."""
    concurrency: int = 16
    """Attempts at once."""
    reward: RewardFunction | None = None
    """`score(task, result)`; None when agents return or emit their own rewards."""
    reward_weights: Mapping[str, float] | None = None
    """Weight of each of the reward's dimensions."""
    input: InputFunction | None = None
    """`make(task)`: the agent's input; None when the adapter tells it from the task."""
    hooks: tuple[Hook, ...] = ()
    isolation: str = ""
    """How attempts are kept apart, and why so, for whoever reads the worker's record; one line."""
    poll_seconds: float = 0.5
    """The longest wait of one claim, and so of the runner's stop."""
    heartbeat_seconds: float = 5.0
    """How often the store hears that running attempts are alive; well below their `unresponsive_seconds`."""
    cancel_seconds: float = 1.0
    """How long an async agent may take to notice that it was cancelled before it is left behind."""

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot work."""
        if self.key == b"":
            raise ValueError("the gateway's signing key is empty; without one, claims bring their attempts' tokens")
        if self.concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {self.concurrency}")
