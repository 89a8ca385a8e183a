r"""Hooks of a run, which note each event of a triage with a tool and a handoff.
---
run: main
author: await main(task)
tasks:
  - question: Start with Lighthouse.
  - question: Start with Submarine.
model:
  - system: Generate
    role: user
    when: with (\w+)
    call: {name: size_of, arguments: {thing: \1}}
  - system: Generate
    role: tool
    when: (\w+) is \d+
    call: {name: transfer_to_multiply_agent}
  - system: Multiply
    role: tool
    seen: (\w+) is (\d+)
    say: Twice \2 for \1.
calls: 3
result: [for Lighthouse., for Submarine.]
agents: [Start Agent, Multiply Agent]
tools: [size_of]
"""

from typing import Any

from agents import Agent, RunContextWrapper, RunHooks, Runner, Tool, function_tool


class ExampleHooks(RunHooks):
    def __init__(self):
        self.events = []

    async def on_agent_start(self, context: RunContextWrapper, agent: Agent) -> None:
        self.events.append(f"{agent.name} started")

    async def on_llm_start(self, context, agent, system_prompt, input_items) -> None:
        self.events.append(f"model asked with {len(input_items)} items")

    async def on_llm_end(self, context, agent, response) -> None:
        self.events.append(f"model gave {len(response.output)} items")

    async def on_agent_end(self, context: RunContextWrapper, agent: Agent, output: Any) -> None:
        self.events.append(f"{agent.name} ended with {output}")

    async def on_tool_start(self, context: RunContextWrapper, agent: Agent, tool: Tool) -> None:
        self.events.append(f"{tool.name} started")

    async def on_tool_end(self, context: RunContextWrapper, agent: Agent, tool: Tool, result: str) -> None:
        self.events.append(f"{tool.name} gave {result}")

    async def on_handoff(self, context: RunContextWrapper, from_agent: Agent, to_agent: Agent) -> None:
        self.events.append(f"{from_agent.name} to {to_agent.name}")


@function_tool
def size_of(thing: str) -> str:
    """The size of a thing."""
    return f"{thing} is {len(thing)}"


multiply_agent = Agent(name="Multiply Agent", instructions="Multiply the number by 2.")
start_agent = Agent(
    name="Start Agent", instructions="Generate a number, then hand off.", tools=[size_of], handoffs=[multiply_agent]
)


async def main(task):
    hooks = ExampleHooks()
    result = await Runner.run(start_agent, hooks=hooks, input=task["question"])
    return result.final_output, hooks.events
