r"""A writer and a critic until the critic approves.
---
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - system: writer
    when: Topic (\w+)
    say: First text on \1.
  - system: writer
    when: improve (\w+) text on (\w+)
    say: Second text on \2.
  - system: critic
    when: First
    say: "no"
  - system: critic
    when: Second
    say: "yes"
calls: 4
result: [Second text on lighthouses., Second text on submarines.]
"""

from openai import OpenAI

client = OpenAI()


def complete(system, text):
    messages = [{"role": "system", "content": f"You are the {system}."}, {"role": "user", "content": text}]
    return client.chat.completions.create(model="gpt-4o-mini", messages=messages).choices[0].message.content


def agent(task):
    draft = complete("writer", f"Topic {task['topic']}")
    for _ in range(5):
        if complete("critic", draft).lower().startswith("yes"):
            return draft
        draft = complete("writer", f"Please improve {draft}")
    raise RuntimeError("the critic is never content")
