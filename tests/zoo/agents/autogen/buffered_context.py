r"""An assistant that sees only its last messages, by a BufferedChatCompletionContext, asked three times.
---
run: talk
author: asyncio.run(talk(task))
tasks:
  - name: Lighthouse
  - name: Submarine
model:
  - when: My name is (\w+)
    say: Hello, \1.
  - when: I like tea
    say: Noted.
  - when: What is my name
    seen: Hello, (\w+)
    say: You are \1.
  - when: What is my name
    say: I cannot remember.
calls: 3
result: '"I cannot remember."'
agents: [assistant]
"""

from autogen_agentchat.agents import AssistantAgent
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def talk(task):
    agent = AssistantAgent(
        name="assistant",
        model_client=OpenAIChatCompletionClient(model="gpt-4o-mini"),
        system_message="You are a helpful assistant.",
        model_context=BufferedChatCompletionContext(buffer_size=3),
    )
    answers = []
    for text in (f"My name is {task['name']}.", "I like tea.", "What is my name?"):
        answers.append((await agent.run(task=text)).messages[-1].content)
    return answers
