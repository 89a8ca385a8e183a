r"""A conversation kept by hand: to_input_list goes into the next run, and the current agent goes on.
---
run: main
author: await main(task)
tasks:
  - city: Lisbon
  - city: Naples
model:
  - when: in (\w+)\?
    say: That is the bridge of \1.
  - when: Which country
    seen: bridge of (\w+)
    say: You mean where \1 is.
calls: 2
result: [where Lisbon is, where Naples is]
agents: [Guide]
"""

from agents import Agent, Runner, trace

agent = Agent(name="Guide", instructions="Reply very concisely.")


async def main(task):
    with trace(workflow_name="Conversation", group_id="thread_1"):
        result = await Runner.run(agent, f"Which bridge is in {task['city']}?")
        follow_up = result.to_input_list() + [{"role": "user", "content": "Which country is it in?"}]
        result = await Runner.run(result.last_agent, follow_up)
    return result.final_output
