r"""An assistant whose provider is overloaded twice; the client tries again.
---
author: 'await agent.run(task=task["question"])'
tasks:
  - question: Greet Lighthouse.
  - question: Greet Submarine.
model:
  - when: Greet
    status: 429
    times: 1
  - when: Greet
    status: 500
    times: 1
  - when: Greet (\w+)
    say: Good day, \1.
calls: 1
result: ["Good day, Lighthouse.", "Good day, Submarine."]
agents: [greeter]
"""

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

agent = AssistantAgent("greeter", model_client=OpenAIChatCompletionClient(model="gpt-4o", max_retries=3))
