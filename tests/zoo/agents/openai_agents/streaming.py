r"""Run_streamed read event by event: text deltas, tool calls, messages.
---
run: main
author: asyncio.run(main(task))
tasks:
  - question: Tell jokes about lighthouses.
  - question: Tell jokes about submarines.
model:
  - role: user
    when: jokes about (\w+)
    call: {name: how_many_jokes}
  - role: tool
    seen: jokes about (\w+)
    say: One about \1 and one more about \1.
calls: 2
result: [One about lighthouses and one, One about submarines and one]
agents: [Joker]
tools: [how_many_jokes]
"""

from agents import Agent, ItemHelpers, Runner, function_tool
from openai.types.responses import ResponseTextDeltaEvent


@function_tool
def how_many_jokes() -> int:
    """How many jokes to tell."""
    return 2


joker = Agent(name="Joker", instructions="First call the `how_many_jokes` tool.", tools=[how_many_jokes])


async def main(task):
    result = Runner.run_streamed(joker, input=task["question"])
    text, seen = "", []
    async for event in result.stream_events():
        if event.type == "raw_response_event":
            if isinstance(event.data, ResponseTextDeltaEvent):
                text += event.data.delta
        elif event.type == "agent_updated_stream_event":
            seen.append(f"agent {event.new_agent.name}")
        elif event.item.type == "tool_call_output_item":
            seen.append(f"output {event.item.output}")
        elif event.item.type == "message_output_item":
            seen.append(ItemHelpers.text_message_output(event.item))
        else:
            seen.append(event.name)
    return {"text": text, "events": seen, "final": result.final_output}
