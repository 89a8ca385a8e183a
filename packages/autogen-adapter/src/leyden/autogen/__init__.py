"""AutoGen adapter: runs agents and teams for Leyden unchanged. Importing it does not load AutoGen."""

from typing import TYPE_CHECKING, Any

from leyden.autogen._adapter import AutoGenAdapter
from leyden.autogen._instrumentor import AutoGenInstrumentor

if TYPE_CHECKING:
    from leyden.autogen._log_handler import LeydenLogHandler

__all__ = ["AutoGenAdapter", "AutoGenInstrumentor", "LeydenLogHandler"]


def __getattr__(name: str) -> Any:
    """Load the log handler, which reads AutoGen's events, when it is first requested."""
    if name == "LeydenLogHandler":
        from leyden.autogen._log_handler import LeydenLogHandler

        return LeydenLogHandler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
