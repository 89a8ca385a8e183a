r"""A functools.partial of Runner.run with a context, hooks off, and a bound on turns.
---
author: 'await agent(task["question"])'
tasks:
  - question: Buy two tickets for Lisbon.
  - question: Buy two tickets for Naples.
model:
  - role: user
    when: tickets for (\w+)
    call: {name: buy, arguments: '{"city": "\1", "count": 2}'}
  - role: tool
    when: bought (\d) for (\w+)
    say: You go to \2 with \1 tickets.
calls: 2
result: [You go to Lisbon with 2 tickets., You go to Naples with 2 tickets.]
agents: [Clerk]
tools: [buy]
"""

import functools
from dataclasses import dataclass

from agents import Agent, RunContextWrapper, Runner, function_tool


@dataclass
class Till:
    sold: int = 0


@function_tool
def buy(wrapper: RunContextWrapper[Till], city: str, count: int) -> str:
    """Buy tickets."""
    wrapper.context.sold += count
    return f"bought {wrapper.context.sold} for {city}"


clerk = Agent[Till](name="Clerk", instructions="You sell tickets.", tools=[buy])
agent = functools.partial(Runner.run, clerk, context=Till(), max_turns=4)
