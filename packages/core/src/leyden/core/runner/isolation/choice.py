"""Choice between a shared process and one process for each rollout, with the reason."""

from dataclasses import dataclass

from leyden.core.data.isolation import Isolation
from leyden.core.runner.commands.command import CommandAgent
from leyden.core.runner.isolation.shared_state import SharedObject, shared_objects
from leyden.core.runner.user_code.loaded_agent import LoadedAgent

ALL_SHARE = "all rollouts share"
NOTHING_SHARED = "nothing in the agent can pass from one rollout to another"


@dataclass(frozen=True, slots=True)
class IsolationChoice:
    """The choice, and the objects that rollouts would share in one process."""

    processes: bool
    shared: tuple[SharedObject, ...] = ()
    is_command: bool = False
    """The agent is a command, so that every attempt is a process in any case."""

    def reason(self, imports_again: str | None = None) -> str:
        """Return one line for the user.

        `imports_again` is the reason why each process imports the agent itself, if it does.
        """
        if not self.processes:
            return f"{ALL_SHARE} {self._shared()}" if self.shared else NOTHING_SHARED
        because = f", because they would share {self._shared()}" if self.shared else ""
        again = (
            f". Each process imports the agent again, because the import leaves open: {imports_again}"
            if imports_again
            else ""
        )
        return f"each rollout runs in a process of its own{because}{again}"

    def _shared(self) -> str:
        others = len(self.shared) - 1
        return f"{self.shared[0]}" + (f" (and {others} more)" if others else "")


def choose(isolation: Isolation, loaded: LoadedAgent) -> IsolationChoice:
    """Return the choice for a loaded agent. `auto` chooses processes where rollouts would share an object."""
    if isinstance(loaded.source.agent, CommandAgent):
        return IsolationChoice(False, is_command=True)
    shared = tuple(shared_objects(loaded.source))
    if isolation == "auto":
        return IsolationChoice(bool(shared), shared)
    return IsolationChoice(isolation == "process", shared)
