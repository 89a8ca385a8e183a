"""Isolation for a live agent: forks the process that holds it where rollouts would otherwise share something."""

import gc

from leyden.core.data.isolation import Isolation
from leyden.core.errors import UsageError
from leyden.core.runner.adapters.auto_instrument import instrument_all
from leyden.core.runner.attempts.thread_safety import prepare_first_use
from leyden.core.runner.isolation.choice import choose
from leyden.core.runner.isolation.fork_hazards import ForkHazards
from leyden.core.runner.isolation.fork_server import ForkServer
from leyden.core.runner.isolation.forked_agent import serve_attempt
from leyden.core.runner.isolation.processes import import_safely
from leyden.core.runner.user_code.loaded_agent import LoadedAgent
from leyden.core.tracing import context_propagation
from leyden.core.tracing.wire import routing


class LiveProcesses:
    """Fork server for a live agent. Create it before the process has an event loop or threads of Leyden's."""

    def __init__(self, isolation: Isolation, loaded: LoadedAgent) -> None:
        """Fork a server where rollouts need processes of their own.

        Raises UsageError where they do and this process has threads or connections that make a fork unsafe.
        """
        choice = choose(isolation, loaded)
        self.reason = choice.reason()
        """One line for the worker's record."""
        self.server = _forked(loaded, self.reason) if choice.processes else None

    def end(self) -> None:
        """End the server and all its processes."""
        if self.server is not None:
            self.server.end()


def _forked(loaded: LoadedAgent, reason: str) -> ForkServer:
    hazards = ForkHazards.of_this_process().found()
    if hazards:
        raise UsageError(
            f"{reason}; but this process cannot be forked, because it has {', '.join(hazards)}: give the agent as "
            "file.py:name, create the shared objects inside the agent's function, or give isolation='shared'"
        )

    def prepare() -> None:
        context_propagation.install()
        routing.install(fail_closed=True)
        prepare_first_use()
        instrument_all(loaded.source.adapter)
        gc.collect()
        gc.freeze()

    return ForkServer.fork(lambda connection: serve_attempt(connection, lambda: loaded), prepare, import_safely)
