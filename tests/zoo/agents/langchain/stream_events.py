r"""astream_events of an agent, of which the names and pieces are kept.
---
tasks:
  - question: What is the weather in Lisbon?
  - question: What is the weather in Oslo?
model:
  - role: user
    when: weather in (\w+)
    call: {name: get_weather, arguments: {city: \1}}
  - role: tool
    when: (.*)
    say: I looked it up. \1
calls: 2
result: on_tool_end
tools: [get_weather]
author: await agent(task)
"""

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"It is sunny in {city}."


graph = create_agent(ChatOpenAI(model="gpt-4o-mini", streaming=True), [get_weather], name="weather")


async def agent(task):
    seen = []
    async for event in graph.astream_events(
        {"messages": [{"role": "user", "content": task["question"]}]}, version="v2"
    ):
        if event["event"] in ("on_chat_model_stream", "on_tool_end"):
            seen.append((event["event"], event["name"]))
    return seen
