"""`WorkerSpec`: the complete input of a worker process.

It is sent as a line of JSON on the worker's standard input. The store's token follows on a second line.
"""

from leyden.core.data.route import Route
from leyden.core.runner.user_code.agent_spec import AgentSpec, TaskExample
from leyden.core.runner.user_code.loading import AgentReference


class WorkerSpec(AgentSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An agent, and where its rollouts come from.

    It contains secrets, so it is never put into an environment or a command line.
    """

    agent: AgentReference
    """Import string `path.py:attribute` or `module:attribute` of an agent or of a function that makes one.

    Or the words of a command line.
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
    worker_id: str = ""
    """Set by the pool."""
    examples: tuple[TaskExample, ...] = ()
    """Tasks that the agent must be able to take. The worker checks them before it is ready."""
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
