"""`AgentTracer`: value of `self.tracer` in a `LitAgent`. Adapters do the recording."""

from leyden.core.errors import UnknownAgent
from leyden.core.runner.adapters.registry import installed_adapter


class AgentTracer:
    """Callback handlers of the installed adapters, for agents that pass a handler explicitly."""

    def get_langchain_handler(self) -> object:
        """Return the LangChain callback handler. Raises UnknownAgent when `leyden-langchain` is not installed."""
        return self._handler("langchain")

    def _handler(self, name: str) -> object:
        handler = installed_adapter(name).callback_handler()
        if handler is None:
            raise UnknownAgent(f"the installed {name!r} adapter has no callback handler: upgrade leyden-{name}")
        return handler
