r"""A streamed run that its reader cancels after the first pieces.
---
run: main
author: await main(task)
tasks:
  - question: Count from Lisbon.
  - question: Count from Naples.
model:
  - when: from (\w+)
    say: \1, then Marseille, then Genoa, then Trieste, then Bari, then Split.
    held: true
calls: 1
not_trained: {client disconnected: 1}
result: ["Lisbon, the", "Naples, the"]
agents: [Counter]
"""

from agents import Agent, Runner

counter = Agent(name="Counter", instructions="You count.")


async def main(task):
    result = Runner.run_streamed(counter, task["question"])
    text = ""
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
            if len(text) > 11:
                result.cancel()
    return text[:11]
