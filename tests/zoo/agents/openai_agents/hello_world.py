r"""The shortest agent: instructions and a run, as the README begins.
---
author: 'await Runner.run(agent, task["question"])'
tasks:
  - question: Write a haiku about lighthouses.
  - question: Write a haiku about submarines.
model:
  - when: haiku about (\w+)
    say: Still \1, no wind, and again still \1.
calls: 1
result: [Still lighthouses, Still submarines]
agents: [Assistant]
"""

from agents import Agent, Runner

agent = Agent(name="Assistant", instructions="You only respond in haikus.")


async def main():
    result = await Runner.run(agent, "Tell me about recursion in programming.")
    print(result.final_output)


if __name__ == "__main__":
    import asyncio

    asyncio.run(main())
