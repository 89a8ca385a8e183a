r"""Several workers of autogen-core answer one broadcast at the same time; a ClosureAgent collects into a queue.
---
run: main
author: await main(task)
tasks:
  - question: What is good about lighthouses?
  - question: What is good about submarines?
model:
  - system: calm
    when: about (\w+)
    say: They are calm, \1.
  - system: cheerful
    when: about (\w+)
    say: They are fun, \1!
calls: 2
result: ["They are fun, lighthouses!", "They are fun, submarines!"]
agents: [calm, cheerful]
"""

import asyncio
from dataclasses import dataclass

from autogen_core import (
    ClosureAgent,
    ClosureContext,
    DefaultTopicId,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    TopicId,
    TypeSubscription,
    default_subscription,
    message_handler,
)
from autogen_core.models import ChatCompletionClient, SystemMessage, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient


@dataclass
class Question:
    text: str


@dataclass
class Answer:
    worker: str
    text: str


@default_subscription
class Worker(RoutedAgent):
    def __init__(self, mood: str, model_client: ChatCompletionClient) -> None:
        super().__init__("A worker")
        self._mood, self._client = mood, model_client

    @message_handler
    async def answer(self, message: Question, ctx: MessageContext) -> None:
        result = await self._client.create(
            [SystemMessage(content=f"You are {self._mood}."), UserMessage(content=message.text, source="user")]
        )
        await self.publish_message(Answer(self._mood, str(result.content)), TopicId("answers", "default"))


async def main(task):
    queue: asyncio.Queue[Answer] = asyncio.Queue()

    async def collect(_agent: ClosureContext, message: Answer, ctx: MessageContext) -> None:
        await queue.put(message)

    client = OpenAIChatCompletionClient(model="gpt-4o-mini")
    runtime = SingleThreadedAgentRuntime()
    for mood in ("calm", "cheerful"):
        await Worker.register(runtime, mood, lambda mood=mood: Worker(mood, client))
    await ClosureAgent.register_closure(
        runtime, "collector", collect, subscriptions=lambda: [TypeSubscription("answers", "collector")]
    )
    runtime.start()
    await runtime.publish_message(Question(task["question"]), DefaultTopicId())
    await runtime.stop_when_idle()
    found = [queue.get_nowait() for _ in range(queue.qsize())]
    return sorted(answer.text for answer in found)
