"""LangChain and LangGraph adapter: runs agents for Leyden unchanged. Importing it loads neither."""

from typing import TYPE_CHECKING, Any

from leyden.langchain._adapter import LangChainAdapter
from leyden.langchain._instrumentor import LangChainInstrumentor, handler_class

if TYPE_CHECKING:
    from leyden.langchain._callbacks import LeydenCallbackHandler

__all__ = ["LangChainAdapter", "LangChainInstrumentor", "LeydenCallbackHandler"]


def __getattr__(name: str) -> Any:
    """Load the callback handler when it is first requested; its base class is LangChain's."""
    if name == "LeydenCallbackHandler":
        return handler_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
