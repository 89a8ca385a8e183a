"""`WorkerSpec`: the complete input of a worker process.

It is sent as a line of JSON on the worker's standard input. The store's token follows on a second line.
"""

import msgspec

from leyden.core.data.isolation import Isolation
from leyden.core.data.route import Route
from leyden.core.runner.user_code.loading import AgentReference


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker runs and where. It contains secrets, so it is never put into an environment or a command line."""

    agent: AgentReference
    """Import string `path.py:attribute` or `module:attribute` of an agent or of a function that makes one.

    Or a command line.
    """
    store_url: str
    store_token: str
    """The store's token.

    From a machine's token the pool derives one for each worker; any other is passed on unchanged.
    """
    gateway_url: str
    """Root URL of the gateway, without a trailing slash."""
    key: str = ""
    """The gateway's signing key in hexadecimal. Empty where the store answers claims with attempts' tokens.

    Agents in Python can read it. Workers of a run have no key.
    """
    routes: tuple[Route, ...] = ()
    """Rules that send model calls of the agent to a policy or to its own provider."""
    reward: str | None = None
    """Import string of `score(task, result)`."""
    reward_weights: dict[str, float] | None = None
    input: str | None = None
    """Import string of `make(task)`, which returns the agent's input. None: the adapter derives it from the task."""
    hooks: tuple[str, ...] = ()
    """Import strings of `Hook` objects or classes."""
    env: tuple[str, ...] = ()
    """Names of environment variables that hold secrets and that a command agent receives nevertheless."""
    concurrency: int = 16
    isolation: Isolation = "auto"
    """Whether rollouts run in processes of their own."""
    worker_id: str = ""
    """Set by the pool."""
    log_file: str | None = None
    """File for the agent's output and the worker's log, which the pool writes, masked.

    None: the pool's own standard error.
    """
    python_path: tuple[str, ...] = ()
    """Further entries of `sys.path`. The pool adds those of its own process."""
    stall_seconds: float = 120.0
    """A worker whose event loop is blocked for this many seconds is replaced.

    Async agents with blocking calls cause it.
    """

    def __repr__(self) -> str:
        return f"WorkerSpec(agent={self.agent!r}, worker_id={self.worker_id!r}, store_url={self.store_url!r})"
