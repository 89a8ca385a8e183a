r"""An agent class of one's own, derived from BaseChatAgent, that calls the model twice and counts down between.
---
author: 'await agent.run(task=task["question"])'
tasks:
  - question: Describe lighthouses.
  - question: Describe submarines.
model:
  - when: Describe (\w+)
    say: \1 are long.
  - when: Shorten. (\w+)
    say: \1!
calls: 2
result: [lighthouses!, submarines!]
agents: [shortener]
"""

from collections.abc import AsyncGenerator, Sequence

from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, TextMessage
from autogen_core import CancellationToken
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import AssistantMessage, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient


class Shortener(BaseChatAgent):
    def __init__(self, name: str, model: str = "gpt-4o"):
        super().__init__(name, "Says it, then says it shorter.")
        self._model_context = UnboundedChatCompletionContext()
        self._client = OpenAIChatCompletionClient(model=model)

    @property
    def produced_message_types(self) -> Sequence[type[BaseChatMessage]]:
        return (TextMessage,)

    async def on_messages(self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken) -> Response:
        response: Response | None = None
        async for message in self.on_messages_stream(messages, cancellation_token):
            if isinstance(message, Response):
                response = message
        assert response is not None
        return response

    async def on_messages_stream(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
    ) -> AsyncGenerator[BaseAgentEvent | BaseChatMessage | Response, None]:
        for message in messages:
            await self._model_context.add_message(message.to_model_message())
        long = await self._client.create(await self._model_context.get_messages())
        await self._model_context.add_message(AssistantMessage(content=str(long.content), source=self.name))
        inner = TextMessage(content=str(long.content), source=self.name)
        yield inner
        short = await self._client.create([UserMessage(content=f"Shorten. {long.content}", source=self.name)])
        yield Response(chat_message=TextMessage(content=str(short.content), source=self.name), inner_messages=[inner])

    async def on_reset(self, cancellation_token: CancellationToken) -> None:
        await self._model_context.clear()


agent = Shortener("shortener")
