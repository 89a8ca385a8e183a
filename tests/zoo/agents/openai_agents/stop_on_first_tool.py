r"""Tool_use_behavior: one agent stops on its first tool, one on certain tools, one by a function.
---
run: main
author: await main(task)
tasks:
  - question: Weather of Lisbon?
  - question: Weather of Naples?
model:
  - role: user
    when: Weather of (\w+)
    call: {name: get_weather, arguments: {city: \1}}
calls: 3
result: [Lisbon is mild, Naples is mild]
agents: [first, certain, chosen]
tools: [get_weather]
"""

from typing import Any

from agents import (
    Agent,
    FunctionToolResult,
    ModelSettings,
    RunContextWrapper,
    Runner,
    StopAtTools,
    ToolsToFinalOutputResult,
    function_tool,
)


@function_tool
def get_weather(city: str) -> str:
    """Get the weather."""
    return f"{city} is mild"


async def choose(context: RunContextWrapper[Any], results: list[FunctionToolResult]) -> ToolsToFinalOutputResult:
    return ToolsToFinalOutputResult(is_final_output=True, final_output=f"chosen: {results[0].output}")


settings = ModelSettings(tool_choice="required")
agents = [
    Agent(name="first", tools=[get_weather], tool_use_behavior="stop_on_first_tool", model_settings=settings),
    Agent(name="certain", tools=[get_weather], tool_use_behavior=StopAtTools(stop_at_tool_names=["get_weather"])),
    Agent(name="chosen", tools=[get_weather], tool_use_behavior=choose),
]


async def main(task):
    return [(await Runner.run(agent, task["question"])).final_output for agent in agents]
