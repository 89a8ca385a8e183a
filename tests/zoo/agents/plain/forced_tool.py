r"""tool_choice that names a function, whose arguments are the result.
---
tasks:
  - question: Alice is 31 years old.
  - question: Bruno is 47 years old.
model:
  - when: (\w+) is (\d+) years
    call: {name: save_person, arguments: '{"name": "\1", "age": \2}'}
calls: 1
result: ['"name": "Alice"', '"name": "Bruno"']
"""

import json

from openai import OpenAI

client = OpenAI()
SAVE = {
    "type": "function",
    "function": {
        "name": "save_person",
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name", "age"],
        },
    },
}


def agent(task):
    completion = client.chat.completions.create(
        model="gpt-4o-mini",
        messages=[{"role": "user", "content": task["question"]}],
        tools=[SAVE],
        tool_choice={"type": "function", "function": {"name": "save_person"}},
    )
    (call,) = completion.choices[0].message.tool_calls
    return json.loads(call.function.arguments)
