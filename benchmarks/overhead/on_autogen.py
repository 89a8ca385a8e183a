"""AutoGen: its own model client on a fake of the provider's, and an `AssistantAgent` with it.

OpenInference records no other client, and a client of one's own would leave out what AutoGen does for each call.
"""

from types import SimpleNamespace
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion

from overhead import model

ADAPTER = "leyden.autogen:AutoGenAdapter"
INSTRUMENTOR = "leyden.autogen:AutoGenInstrumentor"
OPENINFERENCE = "openinference.instrumentation.autogen_agentchat:AutogenAgentChatInstrumentor"
DATED = f"{model.MODEL}-2025-04-14"
"""The name that the provider answers under."""
USAGE = CompletionUsage(
    prompt_tokens=model.TOKENS["input_tokens"],
    completion_tokens=model.TOKENS["output_tokens"],
    total_tokens=model.TOKENS["total_tokens"],
)


def said(finish_reason: str, **message: Any) -> ChatCompletion:
    """Return a completion as the provider would send it."""
    choice = {"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", **message}}
    return ChatCompletion.model_validate(
        {
            "id": "chatcmpl-1",
            "choices": [choice],
            "created": 0,
            "model": DATED,
            "object": "chat.completion",
            "usage": USAGE,
        }
    )


CALLED = said(
    "tool_calls",
    tool_calls=[
        {"id": "call-1", "type": "function", "function": {"name": model.TOOL, "arguments": model.ARGUMENTS_TEXT}}
    ],
)
ANSWERED = said("stop", content=model.ANSWER)


async def create(*, messages: list[Any], tools: Any, **_: Any) -> ChatCompletion:
    """Call the tool that is given once, then answer."""
    with model.around[-1]():
        await model.gate.passed()
        return CALLED if isinstance(tools, list) and messages[-1]["role"] != "tool" else ANSWERED


CHAT = OpenAIChatCompletionClient(model=model.MODEL, api_key="none")
setattr(CHAT, "_client", SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create))))  # noqa: B010


def solver() -> AssistantAgent:
    """Make an agent."""
    return AssistantAgent("solver", CHAT, tools=[model.double], reflect_on_tool_use=True)


AGENT: Any = solver()


async def call() -> Any:
    """Ask the model."""
    return await CHAT.create([UserMessage(content=model.PROMPT, source="user")])


async def run() -> Any:
    """Run an agent that has heard of nothing: it remembers what it hears, and cannot run twice at once."""
    return await solver().run(task=model.PROMPT)


def agentops(provider: Any) -> None:
    """AgentOps knows AG2, which is another framework."""
    raise LookupError("AgentOps has nothing for autogen-agentchat")
