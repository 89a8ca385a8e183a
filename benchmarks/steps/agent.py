"""The agent of our side: one call through the provider's own client. It knows nothing of Leyden."""

from typing import Any, cast

from openai import AsyncOpenAI

from steps.task import MAX_TOKENS, TOOL, messages_of, reward_of

client = AsyncOpenAI(base_url="https://api.openai.com/v1", api_key="sk-your-key-here")


async def agent(task: dict[str, Any]) -> str:
    """Ask once; return what the model wrote, a tool call as its arguments."""
    answer = await client.chat.completions.create(
        model="gpt-4.1-mini",
        messages=cast("Any", messages_of(task["question"])),
        tools=cast("Any", [TOOL]),
        max_tokens=MAX_TOKENS,
    )
    message = answer.choices[0].message
    calls: list[Any] = list(message.tool_calls or [])
    return calls[0].function.arguments if calls else message.content or ""


def score(task: dict[str, Any], result: str) -> float:
    """Whether the expression is right."""
    return reward_of(result, task["answer"])
