"""`Failure`: why an attempt did not succeed, as its metadata keeps it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from leyden.core.data.rollout import Attempt
from leyden.core.masking import mask_text, visible

FailureKind = Literal["agent", "timeout", "reward", "input", "cancelled", "worker", "leyden", "unknown"]
"""What failed: the agent raised; it took too long; the reward function failed; the task does not fit the agent; the
rollout was cancelled; the agent's process was lost; Leyden itself failed; or the record does not say."""

ERROR = "error"
"""Key of the attempt's metadata that holds its failure."""
NOT_STORED = "not_stored"
"""Key of the attempt's metadata that counts spans the store refused: `{"spans": 2, "reason": "..."}`."""

_UNSAID = {
    "failed": "the attempt failed, and its record does not say why",
    "timeout": "the attempt took longer than it may",
    "unresponsive": "neither a heartbeat nor a span of the attempt arrived for too long",
}
_KINDS: dict[str, FailureKind] = {"timeout": "timeout", "unresponsive": "worker"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt did not succeed."""

    kind: FailureKind
    type: str
    """Name of the exception's class, or of what stands for it."""
    message: str

    @property
    def text(self) -> str:
        """One line: the agent's exception with its type, otherwise the message alone; all of it, white space joined."""
        message = " ".join(self.message.split())
        if self.kind != "agent":
            return message or self.type
        return f"{self.type}: {message}" if message else self.type

    def metadata(self) -> dict[str, str]:
        """As the attempt's metadata holds it under `error`: without secrets and control characters."""
        return {"kind": self.kind, "type": visible(mask_text(self.type)), "message": visible(mask_text(self.message))}


def failure_of(attempt: Attempt) -> Failure | None:
    """The failure of an attempt that ended badly; of kind `unknown` where its record does not say why.

    None for an attempt that succeeded or still runs.
    """
    if attempt.status not in _UNSAID:
        return None
    noted = attempt.metadata.get(ERROR)
    if not isinstance(noted, Mapping):
        kind = _KINDS.get(attempt.status, "unknown")
        return Failure(kind=kind, type=attempt.status, message=_UNSAID[attempt.status])
    error = cast("Mapping[str, Any]", noted)
    kind = cast("FailureKind", error.get("kind", "unknown"))
    return Failure(kind=kind, type=str(error.get("type", "")), message=str(error.get("message", "")))
