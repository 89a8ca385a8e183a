r"""The Responses API streamed, with a function call.
---
author: await agent(task)
tasks:
  - question: What is the weather in Lisbon?
  - question: What is the weather in Oslo?
model:
  - role: user
    when: weather in (\w+)
    call: {name: get_weather, arguments: {city: \1}}
  - role: tool
    when: (.*)
    say: I looked it up. \1
calls: 2
result: [sunny in Lisbon, sunny in Oslo]
"""

import json

from openai import AsyncOpenAI

client = AsyncOpenAI()
tools = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    }
]


async def agent(task):
    items = [{"role": "user", "content": task["question"]}]
    while True:
        text, calls = "", []
        stream = await client.responses.create(model="gpt-4.1", input=items, tools=tools, stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
            elif event.type == "response.output_item.done" and event.item.type == "function_call":
                calls.append(event.item)
        if not calls:
            return text
        for call in calls:
            items.append(
                {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
            )
            city = json.loads(call.arguments)["city"]
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": f"It is sunny in {city}."})
