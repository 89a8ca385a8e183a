r"""Hooks of one agent, at module level, which count and print.
---
author: 'await Runner.run(agent, task["question"])'
tasks:
  - question: Hello from Lighthouse.
  - question: Hello from Submarine.
model:
  - when: from (\w+)
    say: Hello, \1.
calls: 1
result: ["Hello, Lighthouse.", "Hello, Submarine."]
agents: [Greeter]
state: hooks.events
"""

from agents import Agent, AgentHooks, Runner


class CustomAgentHooks(AgentHooks):
    def __init__(self):
        self.events = []

    async def on_start(self, context, agent):
        self.events.append(f"start {agent.name}")

    async def on_end(self, context, agent, output):
        self.events.append(f"end {output}")
        print(f"({agent.name}) ended with {output}")


hooks = CustomAgentHooks()
agent = Agent(name="Greeter", instructions="Greet.", hooks=hooks)


async def main():
    await Runner.run(agent, "Hello from here.")
