r"""A SQLiteSession in a file, one conversation for each task, with a correction by pop_item.
---
run: main
author: asyncio.run(main(task))
tasks:
  - place: Lighthouse
  - place: Submarine
model:
  - when: Where is the (\w+)
    say: The \1 is by the sea.
  - when: two times (\w+)
    say: That is \1 \1.
calls: 3
result: [Lighthouse Lighthouse, Submarine Submarine]
agents: [Assistant]
"""

import os
import tempfile

from agents import Agent, Runner, SQLiteSession

agent = Agent(name="Assistant", instructions="Reply very concisely.")


async def main(task):
    with tempfile.TemporaryDirectory() as folder:
        session = SQLiteSession(task["place"], os.path.join(folder, "conversations.db"))
        await Runner.run(agent, f"Where is the {task['place']}?", session=session)
        await Runner.run(agent, f"What is two times {task['place']}?", session=session)
        await session.pop_item()
        await session.pop_item()
        result = await Runner.run(agent, f"And what is two times {task['place']}?", session=session)
        kept = len(await session.get_items())
        session.close()
    return result.final_output, kept
