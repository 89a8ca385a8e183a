"""CrewAI adapter: runs crews, flows and agents for Leyden unchanged. Importing it does not load CrewAI."""

from typing import TYPE_CHECKING, Any

from leyden.crewai._adapter import CrewAIAdapter
from leyden.crewai._instrumentor import CrewAIInstrumentor

if TYPE_CHECKING:
    from leyden.crewai._listener import LeydenEventListener

__all__ = ["CrewAIAdapter", "CrewAIInstrumentor", "LeydenEventListener"]


def __getattr__(name: str) -> Any:
    """Load the event listener when it is first requested; its base class is CrewAI's."""
    if name == "LeydenEventListener":
        from leyden.crewai._listener import LeydenEventListener

        return LeydenEventListener
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
