r"""The function-calling loop of OpenAI's guide, with two tools called in parallel.
---
tasks:
  - question: Compare the weather in Lisbon and Oslo.
  - question: Compare the weather in Nairobi and Quito.
model:
  - role: user
    when: weather in (\w+) and (\w+)
    calls:
      - {name: get_weather, arguments: {city: \1}}
      - {name: get_weather, arguments: {city: \2}}
  - role: tool
    seen: weather in (\w+) and (\w+)
    say: It is warmer in \1 than in \2.
calls: 2
result: [warmer in Lisbon than in Oslo, warmer in Nairobi than in Quito]
"""

import json

from openai import OpenAI

client = OpenAI()
tools = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get current temperature for a given location.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


def get_weather(city):
    return {"city": city, "celsius": len(city) * 3}


def agent(task):
    messages = [{"role": "user", "content": task["question"]}]
    while True:
        message = client.chat.completions.create(model="gpt-4.1", messages=messages, tools=tools).choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            result = get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
