r"""bind_tools and a loop written by hand.
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
result: [sunny in Lisbon, sunny in Oslo]
tools: [get_weather]
"""

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"It is sunny in {city}."


tools = {"get_weather": get_weather}
model = ChatOpenAI(model="gpt-4o-mini").bind_tools(list(tools.values()))


def agent(task):
    messages = [HumanMessage(task["question"])]
    while True:
        answer = model.invoke(messages)
        messages.append(answer)
        if not answer.tool_calls:
            return answer.content
        for call in answer.tool_calls:
            messages.append(tools[call["name"]].invoke(call))
