"""`WorkerSpec`: all that a worker process is told: a line of JSON on its standard input, and the token in the next."""

import msgspec

from leyden.core.data.isolation import Isolation
from leyden.core.data.route import Route
from leyden.core.runner.user_code.loading import AgentReference


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to run and where. It holds secrets: it is never put into an environment or a command line."""

    agent: AgentReference
    """Import string `path.py:attribute` or `module:attribute` of an agent or of a function that makes one; or a command
    line."""
    store_url: str
    store_token: str
    """A machine's, of which the pool makes one for each worker; any other is given to the workers as it is."""
    gateway_url: str
    """Root URL of the gateway, without a trailing slash."""
    key: str = ""
    """The gateway's signing key, in hexadecimal, where the store's server does not answer claims with attempts' tokens.
    Agents in Python can read it: a run's own workers have none."""
    routes: tuple[Route, ...] = ()
    """Which of the agent's model calls go where."""
    reward: str | None = None
    """Import string of `score(task, result)`."""
    reward_weights: dict[str, float] | None = None
    input: str | None = None
    """Import string of `make(task)`, the agent's input; None: the adapter tells it from the task."""
    hooks: tuple[str, ...] = ()
    """Import strings of `Hook` objects or classes."""
    env: tuple[str, ...] = ()
    """Names of variables that hold secrets and that a command gets all the same."""
    concurrency: int = 16
    isolation: Isolation = "auto"
    """Whether rollouts run in processes of their own."""
    worker_id: str = ""
    """Given by the pool."""
    log_file: str | None = None
    """File that the pool writes what the agent prints and what the worker logs to, masked; None: to its own standard
    error."""
    python_path: tuple[str, ...] = ()
    """Further entries of `sys.path`; the pool adds its own process's."""
    stall_seconds: float = 120.0
    """A worker whose event loop has done nothing for so long (an async agent that blocks) is replaced."""

    def __repr__(self) -> str:
        return f"WorkerSpec(agent={self.agent!r}, worker_id={self.worker_id!r}, store_url={self.store_url!r})"
