r"""A tool that needs approval: the run is interrupted, its state goes through JSON, and it is resumed.
---
run: main
author: await main(task)
tasks:
  - question: Cancel order Lighthouse.
  - question: Cancel order Submarine.
model:
  - role: user
    when: order (\w+)
    call: {name: cancel_order, arguments: {name: \1}}
  - role: tool
    when: (\w+) cancelled
    say: Order \1 is cancelled.
calls: 2
result: [Order Lighthouse is cancelled., Order Submarine is cancelled.]
agents: [Support]
tools: [cancel_order]
"""

from agents import Agent, Runner, RunState, function_tool


@function_tool(needs_approval=True)
async def cancel_order(name: str) -> str:
    """Cancel an order."""
    return f"{name} cancelled"


support = Agent(name="Support", instructions="You help with orders.", tools=[cancel_order])


async def main(task):
    result = await Runner.run(support, task["question"])
    asked = []
    while result.interruptions:
        state = await RunState.from_json(support, result.to_state().to_json())
        for interruption in state.get_interruptions():
            asked.append(interruption.name)
            state.approve(interruption)
        result = await Runner.run(support, state)
    return result.final_output, asked
