r"""A RoutedAgent of autogen-core in a SingleThreadedAgentRuntime, sent a message and answering with one.
---
run: main
author: asyncio.run(main(task))
tasks:
  - question: Hello from Lighthouse!
  - question: Hello from Submarine!
model:
  - system: helpful
    when: from (\w+)
    say: Welcome, \1.
calls: 1
result: ["Welcome, Lighthouse.", "Welcome, Submarine."]
agents: [simple_agent]
"""

from dataclasses import dataclass

from autogen_core import AgentId, MessageContext, RoutedAgent, SingleThreadedAgentRuntime, message_handler
from autogen_core.models import ChatCompletionClient, SystemMessage, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient


@dataclass
class Message:
    content: str


class SimpleAgent(RoutedAgent):
    def __init__(self, model_client: ChatCompletionClient) -> None:
        super().__init__("A simple agent")
        self._system_messages = [SystemMessage(content="You are a helpful AI assistant.")]
        self._model_client = model_client

    @message_handler
    async def handle_user_message(self, message: Message, ctx: MessageContext) -> Message:
        user_message = UserMessage(content=message.content, source="user")
        response = await self._model_client.create(
            self._system_messages + [user_message], cancellation_token=ctx.cancellation_token
        )
        assert isinstance(response.content, str)
        return Message(content=response.content)


async def main(task):
    model_client = OpenAIChatCompletionClient(model="gpt-4o-mini")
    runtime = SingleThreadedAgentRuntime()
    await SimpleAgent.register(runtime, "simple_agent", lambda: SimpleAgent(model_client=model_client))
    runtime.start()
    response = await runtime.send_message(Message(task["question"]), AgentId("simple_agent", "default"))
    await runtime.stop()
    await model_client.close()
    return response
