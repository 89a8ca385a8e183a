"""LangChain and LangGraph agents for Leyden, unchanged. Importing this loads neither framework."""

from typing import TYPE_CHECKING, Any

from leyden.langchain._adapter import LangChainAdapter
from leyden.langchain._instrumentor import LangChainInstrumentor, handler_class

if TYPE_CHECKING:
    from leyden.langchain._callbacks import LeydenCallbackHandler

__all__ = ["LangChainAdapter", "LangChainInstrumentor", "LeydenCallbackHandler"]


def __getattr__(name: str) -> Any:
    """Load the callback handler, whose base class is LangChain's, when it is first asked for."""
    if name == "LeydenCallbackHandler":
        return handler_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
