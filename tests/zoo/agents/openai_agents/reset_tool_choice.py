r"""An agent that must use a tool in every turn, as reset_tool_choice is off, until a tool ends it.
---
author: 'await Runner.run(agent, task["question"])'
tasks:
  - question: Climb to Lighthouse.
  - question: Climb to Submarine.
model:
  - role: user
    when: to (\w+)
    call: {name: step, arguments: {to: \1}}
  - role: tool
    when: near (\w+)
    call: {name: finish, arguments: {place: \1}}
calls: 2
result: [reached Lighthouse, reached Submarine]
agents: [Climber]
tools: [step, finish]
"""

from agents import Agent, ModelSettings, Runner, function_tool


@function_tool
def step(to: str) -> str:
    """Take a step."""
    return f"near {to}"


@function_tool
def finish(place: str) -> str:
    """Be there."""
    return f"reached {place}"


agent = Agent(
    name="Climber",
    instructions="Always use a tool.",
    tools=[step, finish],
    model_settings=ModelSettings(tool_choice="required"),
    reset_tool_choice=False,
    tool_use_behavior={"stop_at_tool_names": ["finish"]},
)


def main():
    Runner.run_sync(agent, "Climb to the top.")
