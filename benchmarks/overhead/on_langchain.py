# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false
"""LangChain and LangGraph: a fake chat model, and `create_agent` around it."""

from contextvars import ContextVar
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

from overhead import model
from overhead.driver import named

ADAPTER = "leyden.langchain:LangChainAdapter"
INSTRUMENTOR = "leyden.langchain:LangChainInstrumentor"
OPENINFERENCE = "openinference.instrumentation.langchain:LangChainInstrumentor"


class Fake(BaseChatModel):
    """Calls the tool that it is given once, then answers."""

    model_name: str = model.MODEL

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        """Tell the model of tools, as providers' models do."""
        return self.bind(tools=[{"type": "function", "function": {"name": tool.name}} for tool in tools])

    def _generate(self, messages: list[BaseMessage], *_: Any, **options: Any) -> ChatResult:
        asked = bool(options.get("tools")) and not isinstance(messages[-1], ToolMessage)
        message = AIMessage(
            "" if asked else model.ANSWER,
            tool_calls=[{"name": model.TOOL, "args": model.ARGUMENTS, "id": "call-1"}] if asked else [],
            usage_metadata=model.TOKENS,
            response_metadata={"model_name": self.model_name, "finish_reason": "stop", "id": "chatcmpl-1"},
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **options: Any) -> ChatResult:
        with model.around[-1]():
            await model.gate.passed()
            return self._generate(messages, **options)


CHAT = Fake()
AGENT: Any = create_agent(CHAT, [tool(model.double)], name="solver")


async def call() -> Any:
    """Ask the model."""
    return await CHAT.ainvoke([("user", model.PROMPT)])


async def run() -> Any:
    """Run the agent."""
    return await AGENT.ainvoke({"messages": [("user", model.PROMPT)]})


def agentops(provider: Any) -> None:
    """Put AgentOps' callback handler into every run."""
    from langchain_core.tracers.context import register_configure_hook

    handler = named("agentops.integration.callbacks.langchain:LangchainCallbackHandler")()
    register_configure_hook(ContextVar("agentops", default=handler), inheritable=True)
