"""Event listener: the explicit form, as users of CrewAI's event bus expect it."""

from typing import Any

from opentelemetry.trace import TracerProvider

from crewai.events import BaseEventListener
from leyden.crewai._bus import listen, stop_listening


class LeydenEventListener(BaseEventListener):
    """Records every crew, flow and agent while it exists: create one and keep it; `close` ends it.

    Several listeners, with or without the instrumentor, record a run once, to the provider of the latest. It adds no
    handler to the bus: handlers run on other threads, too late to set the caller.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._provider = tracer_provider
        super().__init__()

    def setup_listeners(self, crewai_event_bus: Any) -> None:
        """Listen; CrewAI calls this."""
        self._listener = listen(self._provider)

    def close(self) -> None:
        """Stop recording; what still runs ends."""
        stop_listening(self._listener)
