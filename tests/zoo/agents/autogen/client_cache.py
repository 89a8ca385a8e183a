r"""A ChatCompletionCache around the model client: the second run with the same words is answered from the store.
---
run: main
author: await main(task)
tasks:
  - question: Hello from Lighthouse.
  - question: Hello from Submarine.
model:
  - when: from (\w+)
    say: Hi, \1.
calls: 1
result: ["Hi, Lighthouse.", "Hi, Submarine."]
agents: [greeter]
"""

from autogen_agentchat.agents import AssistantAgent
from autogen_core import InMemoryStore
from autogen_ext.models.cache import CHAT_CACHE_VALUE_TYPE, ChatCompletionCache
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def main(task):
    store = InMemoryStore[CHAT_CACHE_VALUE_TYPE]()
    client = ChatCompletionCache(OpenAIChatCompletionClient(model="gpt-4o"), store)
    answers = []
    for _ in range(2):
        greeter = AssistantAgent("greeter", model_client=client)
        answers.append((await greeter.run(task=task["question"])).messages[-1].content)
    return answers
