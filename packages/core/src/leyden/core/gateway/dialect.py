"""`Dialect`: how a provider's API reads a request and writes an answer. Knows nothing of engines or stores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from starlette.types import Send

from leyden.core.data.span import Attributes
from leyden.core.engine.base import FinishReason
from leyden.core.gateway.call_identity import Origin
from leyden.core.gateway.codecs.answer_reader import AnswerReader, ReadPart, ReadToken
from leyden.core.gateway.limits.long_work import Slot
from leyden.core.gateway.model_request import ModelRequest
from leyden.core.gateway.refusal import Refusal

Finish = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnChoice:
    """One answer that has ended."""

    reader: AnswerReader
    tokens: int
    """Tokens that were drawn."""
    engine_finish: FinishReason

    @property
    def cut(self) -> bool:
        """Whether the answer ended because there was no room for more."""
        return self.engine_finish == "length" and not self.reader.stopped

    def finish(self, request: ModelRequest) -> Finish:
        """Why it ended, in the words of Chat Completions; an answer held to one tool ends like any other there."""
        if self.reader.calls and not self.cut:
            forced = request.forced
            named = forced is not None and forced.name is not None and not forced.only_one
            return "stop" if named else "tool_calls"
        return "length" if self.cut else "stop"


class Reply(Protocol):
    """One answer on its way to the agent."""

    live: bool
    """Whether the agent wants to see the answer while it is made."""

    async def show(self, choice: int, parts: Sequence[ReadPart], tokens: Sequence[ReadToken] | None) -> None:
        """Show what is new of a choice."""
        ...

    async def end(self, choices: Sequence[DrawnChoice], prompt_tokens: int) -> None:
        """Send the rest."""
        ...

    async def fail(self, refusal: Refusal) -> None:
        """Say that there will be no answer, or no more of it."""
        ...


class Exchange(Protocol):
    """One request, checked, and the form that its answer takes."""

    @property
    def request(self) -> ModelRequest:
        """What was asked."""
        ...

    def reply(self, send: Send, response_id: str, created: int) -> Reply:
        """Return the answer's way to the agent; `created` is in Unix seconds."""
        ...

    def attributes(self, response_id: str, created: int, choices: Sequence[DrawnChoice]) -> Attributes:
        """Return what the record keeps of the answer beyond what every record keeps."""
        ...


class Dialect(Protocol):
    """One API."""

    name: str
    """As metrics and records call it."""
    path: str
    """Where a request is posted, below the version."""
    id_prefix: str
    """What the ids of its answers begin with."""
    prompt_field: str
    """The field of a request that holds what the model is to read."""

    async def parse(self, body: bytes, origin: Origin, slot: Slot) -> Exchange:
        """Read and check a request, in `slot` where it is long; raises Refusal for what no answer could honour."""
        ...

    def too_long(self, room: int, tokens: int) -> Refusal:
        """Refuse `tokens` of prompt where there is `room` for fewer."""
        ...
