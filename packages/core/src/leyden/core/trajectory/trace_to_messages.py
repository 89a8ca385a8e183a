"""`TraceToMessages`: the model calls among recorded spans, as conversations in OpenAI's format for fine-tuning."""

from collections.abc import Iterable
from typing import Any, TypedDict

from leyden.core.data import semconv
from leyden.core.data.span import Span
from leyden.core.trajectory.messages import read_messages


class Conversation(TypedDict):
    """One model call."""

    messages: list[dict[str, Any]]
    """What the model read, and what it answered."""
    tools: list[dict[str, Any]] | None
    """Tools that it could call; None without any."""


class TraceToMessages:
    """Adapter of the original Agent Lightning. As `Trainer(adapter=...)`, it selects every model call."""

    def adapt(self, source: Iterable[Span], /) -> list[Conversation]:
        """Return the conversation of each model call that the gateway recorded, in order."""
        return [
            Conversation(
                messages=[
                    *read_messages(span.attributes.get(semconv.INPUT_MESSAGES)),
                    *read_messages(span.attributes.get(semconv.OUTPUT_MESSAGES)),
                ],
                tools=read_messages(span.attributes.get(semconv.TOOL_DEFINITIONS)) or None,
            )
            for span in source
            if semconv.CALL_ID in span.attributes
        ]
