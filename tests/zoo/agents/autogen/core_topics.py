r"""A sequential workflow of autogen-core: type subscriptions lead a product from extractor to writer to formatter.
---
run: main
author: asyncio.run(main(task))
tasks:
  - product: Lighthouse lamp
  - product: Submarine lamp
model:
  - system: marketing analyst
    when: (\w+) lamp
    say: '- \1 lamp, bright.'
  - system: copywriter
    when: (\w+) lamp, bright
    say: Buy the bright \1 lamp.
  - system: editor
    when: bright (\w+) lamp
    say: Buy our \1 lamp!
calls: 3
result: [Buy our Lighthouse lamp!, Buy our Submarine lamp!]
agents: [ConceptExtractorAgent, WriterAgent, FormatProofAgent]
"""

from dataclasses import dataclass

from autogen_core import (
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    TopicId,
    TypeSubscription,
    message_handler,
    type_subscription,
)
from autogen_core.models import ChatCompletionClient, SystemMessage, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient


@dataclass
class Message:
    content: str


class Step(RoutedAgent):
    instructions = ""
    next_topic = ""

    def __init__(self, model_client: ChatCompletionClient) -> None:
        super().__init__("A step of the workflow.")
        self._system_message = SystemMessage(content=self.instructions)
        self._model_client = model_client

    @message_handler
    async def handle(self, message: Message, ctx: MessageContext) -> None:
        prompt = UserMessage(content=f"Text: {message.content}", source=self.id.key)
        result = await self._model_client.create([self._system_message, prompt])
        print(f"{self.id.type}: {result.content}")
        await self.publish_message(Message(str(result.content)), topic_id=TopicId(self.next_topic, source=self.id.key))


@type_subscription(topic_type="ConceptExtractorAgent")
class ConceptExtractorAgent(Step):
    instructions = "You are a marketing analyst."
    next_topic = "WriterAgent"


@type_subscription(topic_type="WriterAgent")
class WriterAgent(Step):
    instructions = "You are a marketing copywriter."
    next_topic = "FormatProofAgent"


@type_subscription(topic_type="FormatProofAgent")
class FormatProofAgent(Step):
    instructions = "You are an editor."
    next_topic = "User"


class UserAgent(RoutedAgent):
    def __init__(self, received: list[str]) -> None:
        super().__init__("A user agent that outputs the final copy to the user.")
        self._received = received

    @message_handler
    async def handle(self, message: Message, ctx: MessageContext) -> None:
        self._received.append(message.content)


async def main(task):
    model_client = OpenAIChatCompletionClient(model="gpt-4o-mini")
    runtime = SingleThreadedAgentRuntime()
    received: list[str] = []
    for kind in (ConceptExtractorAgent, WriterAgent, FormatProofAgent):
        await kind.register(runtime, type=kind.__name__, factory=lambda kind=kind: kind(model_client))
    await UserAgent.register(runtime, type="User", factory=lambda: UserAgent(received))
    await runtime.add_subscription(TypeSubscription(topic_type="User", agent_type="User"))
    runtime.start()
    await runtime.publish_message(Message(task["product"]), topic_id=TopicId("ConceptExtractorAgent", source="default"))
    await runtime.stop_when_idle()
    await model_client.close()
    return received
