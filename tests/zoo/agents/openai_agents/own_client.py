r"""A client with a base_url of its own, set as the default, and Chat Completions as the default API.
---
author: 'await Runner.run(agent, task["question"])'
tasks:
  - question: Who built the Eiffel Tower?
  - question: Who built the Taj Mahal?
model:
  - role: user
    when: built the (\w+)
    call: {name: archive, arguments: {building: \1}}
  - role: tool
    when: (\w+) had
    say: \1 had one.
calls: 2
result: [Eiffel had one., Taj had one.]
agents: [Assistant]
tools: [archive]
hosts: ["llm.example.com:8000"]
"""

from agents import (
    Agent,
    Runner,
    function_tool,
    set_default_openai_api,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

client = AsyncOpenAI(base_url="http://llm.example.com:8000/v1", api_key="sk-local")
set_default_openai_client(client=client, use_for_tracing=False)
set_default_openai_api("chat_completions")
set_tracing_disabled(disabled=True)


@function_tool
def archive(building: str) -> str:
    """Look a building up."""
    return f"{building} had an architect"


agent = Agent(name="Assistant", instructions="You are a helpful assistant.", model="my-model", tools=[archive])


async def main():
    print((await Runner.run(agent, "Who built the Eiffel Tower?")).final_output)
