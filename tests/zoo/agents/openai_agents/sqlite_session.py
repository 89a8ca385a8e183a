r"""A conversation that a SQLiteSession in memory remembers between two runs.
---
run: main
author: await main(task)
tasks:
  - place: Lighthouse
  - place: Submarine
model:
  - when: Where is the (\w+)
    say: The \1 is by the sea.
  - when: What colour
    seen: the (\w+)
    say: The \1 is red.
calls: 2
result: [The Lighthouse is red., The Submarine is red.]
agents: [Assistant]
"""

from agents import Agent, Runner, SQLiteSession

agent = Agent(name="Assistant", instructions="Reply very concisely.")


async def main(task):
    session = SQLiteSession("conversation_123")
    await Runner.run(agent, f"Where is the {task['place']}?", session=session)
    result = await Runner.run(agent, "What colour has it?", session=session)
    items = await session.get_items()
    session.close()
    return result.final_output, [item["role"] for item in items]
