r"""A run that ends with MaxTurnsExceeded, as the model calls its tool again and again.
---
run: main
author: await main(task)
tasks:
  - question: Look for Lighthouse.
  - question: Look for Submarine.
model:
  - seen: Look for (\w+)
    call: {name: look, arguments: {thing: \1}}
calls: 3
raises: MaxTurnsExceeded
agents: [Seeker]
tools: [look]
"""

from agents import Agent, Runner, function_tool


@function_tool
def look(thing: str) -> str:
    """Look for a thing."""
    return f"{thing} is not here"


seeker = Agent(name="Seeker", instructions="Look until you find it.", tools=[look])


async def main(task):
    return (await Runner.run(seeker, task["question"], max_turns=3)).final_output
