"""`AgentTracer`: value of `self.tracer` in a `LitAgent`. Adapters do the recording."""

from typing import NoReturn

from leyden.core.errors import UnknownAgent, UsageError
from leyden.core.runner.adapters.registry import installed_adapter


class AgentTracer:
    """Callback handlers of the installed adapters, for agents that pass a handler explicitly."""

    def get_langchain_handler(self) -> object:
        """Return the LangChain callback handler. Raises UnknownAgent when `leyden-langchain` is not installed."""
        return self._handler("langchain")

    def get_last_trace(self) -> NoReturn:
        """Raise UsageError: a process does not have its attempt's spans, since the gateway records the model calls."""
        raise UsageError(
            "a tracer has no get_last_trace() as in Agent Lightning: Hook.on_rollout_end receives the spans, and "
            "store.query_spans returns them"
        )

    def _handler(self, name: str) -> object:
        handler = installed_adapter(name).callback_handler()
        if handler is None:
            raise UnknownAgent(f"the installed {name!r} adapter has no callback handler: upgrade leyden-{name}")
        return handler
