r"""Middleware of one's own: a dynamic prompt, and calls that are wrapped.
---
author: 'agent.invoke({"messages": [{"role": "user", "content": task["question"]}]})'
tasks:
  - question: What is the weather in Lisbon?
  - question: What is the weather in Oslo?
model:
  - role: user
    system: You know 1 message
    when: weather in (\w+)
    call: {name: get_weather, arguments: {city: \1}}
  - role: tool
    system: You know 3 messages
    when: (.*)
    say: I looked it up. \1
calls: 2
result: ["I looked it up. IT IS SUNNY IN LISBON.", "I looked it up. IT IS SUNNY IN OSLO."]
tools: [get_weather]
agents: [weather]
state: log
"""

from langchain.agents import create_agent
from langchain.agents.middleware import before_model, dynamic_prompt, wrap_model_call, wrap_tool_call
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

log = []


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"It is sunny in {city}."


@dynamic_prompt
def prompt(request):
    count = len(request.messages)
    return f"You know {count} message{'s' * (count > 1)}."


@before_model
def note(state, runtime):
    log.append(len(state["messages"]))


@wrap_model_call
def around_model(request, handler):
    log.append("model")
    return handler(request)


@wrap_tool_call
def around_tool(request, handler):
    message = handler(request)
    message.content = message.content.upper()
    return message


agent = create_agent(
    ChatOpenAI(model="gpt-4o-mini"),
    [get_weather],
    middleware=[prompt, note, around_model, around_tool],
    name="weather",
)
