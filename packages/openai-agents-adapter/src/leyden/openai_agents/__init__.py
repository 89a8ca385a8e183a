"""OpenAI Agents SDK agents for Leyden, unchanged. Importing this does not load the framework."""

from typing import TYPE_CHECKING, Any

from leyden.openai_agents._adapter import OpenAIAgentsAdapter
from leyden.openai_agents._instrumentor import OpenAIAgentsInstrumentor

if TYPE_CHECKING:
    from leyden.openai_agents._processor import LeydenTraceProcessor

__all__ = ["LeydenTraceProcessor", "OpenAIAgentsAdapter", "OpenAIAgentsInstrumentor"]


def __getattr__(name: str) -> Any:
    """Load the trace processor, whose base class is the SDK's, when it is first asked for."""
    if name == "LeydenTraceProcessor":
        from leyden.openai_agents._processor import LeydenTraceProcessor

        return LeydenTraceProcessor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
