"""OpenAI Agents SDK adapter: runs agents for Leyden unchanged. Importing it does not load the SDK."""

from typing import TYPE_CHECKING, Any

from leyden.openai_agents._adapter import OpenAIAgentsAdapter
from leyden.openai_agents._instrumentor import OpenAIAgentsInstrumentor

if TYPE_CHECKING:
    from leyden.openai_agents._processor import LeydenTraceProcessor

__all__ = ["LeydenTraceProcessor", "OpenAIAgentsAdapter", "OpenAIAgentsInstrumentor"]


def __getattr__(name: str) -> Any:
    """Load the trace processor when it is first requested; its base class is the SDK's."""
    if name == "LeydenTraceProcessor":
        from leyden.openai_agents._processor import LeydenTraceProcessor

        return LeydenTraceProcessor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
