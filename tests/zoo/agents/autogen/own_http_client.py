r"""A model client with an httpx client of its own, with event hooks, and a base_url that is written in the file.
---
author: 'await agent.run(task=task["question"])'
tasks:
  - question: Who built the Eiffel Tower?
  - question: Who built the Taj Mahal?
model:
  - when: built the (\w+)
    say: \1 had an architect.
calls: 1
result: [Eiffel had an architect., Taj had an architect.]
hosts: ["llm.example.com:8000"]
state: seen
agents: [assistant]
"""

import httpx
from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

seen = []


async def note(response: httpx.Response) -> None:
    seen.append(response.status_code)


model_client = OpenAIChatCompletionClient(
    model="gpt-4o",
    base_url="http://llm.example.com:8000/v1",
    api_key="sk-local",
    timeout=30,
    max_retries=3,
    http_client=httpx.AsyncClient(event_hooks={"response": [note]}, timeout=30),
)
agent = AssistantAgent("assistant", model_client=model_client, description="Answers questions.")
