"""`Failure`: the reason why an attempt did not succeed, as the attempt's metadata records it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from leyden.core.data.rollout import Attempt
from leyden.core.masking import printable

FailureKind = Literal["agent", "timeout", "reward", "input", "cancelled", "worker", "leyden", "unknown"]
"""Which part failed.

`agent`: the agent raised. `timeout`: the attempt took too long. `reward`: the reward function failed. `input`: the task
does not fit the agent. `cancelled`: the rollout was cancelled. `worker`: the agent's process was lost. `leyden`: Leyden
itself failed. `unknown`: the record has no reason.
"""

ERROR = "error"
"""Key of the attempt's metadata that holds its failure."""
NOT_STORED = "not_stored"
"""Key of the attempt's metadata that counts spans that the store refused: `{"spans": 2, "reason": "..."}`."""

_DEFAULT_MESSAGES = {
    "failed": "the attempt failed, and its record has no reason",
    "timeout": "the attempt exceeded its time limit",
    "unresponsive": "the attempt sent neither a heartbeat nor a span within its time limit",
}
_KINDS: dict[str, FailureKind] = {"timeout": "timeout", "unresponsive": "worker"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt did not succeed."""

    kind: FailureKind
    type: str
    """Name of the exception's class, or a name such as `WorkerDied` where there was no exception."""
    message: str
    place: str = ""
    """File and line of the agent's own code that raised the exception; empty where it raised none."""

    @property
    def text(self) -> str:
        """One line with white space joined: for an agent, the exception's type, message and place.

        For other kinds, the message.
        """
        message = " ".join(self.message.split())
        if self.kind != "agent":
            return message or self.type
        text = f"{self.type}: {message}" if message else self.type
        return f"{text} ({self.place})" if self.place else text

    def metadata(self) -> dict[str, str]:
        """Return the value of the metadata key `error`, with secrets masked and control characters removed."""
        found = {"kind": self.kind, "type": printable(self.type), "message": printable(self.message)}
        return found | {"place": printable(self.place)} if self.place else found


def failure_of(attempt: Attempt) -> Failure | None:
    """Return the failure of an attempt that failed, timed out or became unresponsive; otherwise None.

    The kind is `timeout`, `worker` or `unknown` where the metadata has no failure.
    """
    if attempt.status not in _DEFAULT_MESSAGES:
        return None
    recorded = attempt.metadata.get(ERROR)
    if not isinstance(recorded, Mapping):
        kind = _KINDS.get(attempt.status, "unknown")
        return Failure(kind=kind, type=attempt.status, message=_DEFAULT_MESSAGES[attempt.status])
    error = cast("Mapping[str, Any]", recorded)
    kind = cast("FailureKind", error.get("kind", "unknown"))
    texts = {name: str(error.get(name, "")) for name in ("type", "message", "place")}
    return Failure(kind=kind, **texts)
