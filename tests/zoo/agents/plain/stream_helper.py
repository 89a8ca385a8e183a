r"""The SDK's stream helper with its events and its final completion.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
"""

from openai import OpenAI

client = OpenAI()


def agent(task):
    kinds = []
    with client.chat.completions.stream(
        model="gpt-4o-mini", messages=[{"role": "user", "content": task["question"]}]
    ) as stream:
        for event in stream:
            kinds.append(event.type)
        final = stream.get_final_completion()
    return {"kinds": sorted(set(kinds)), "text": final.choices[0].message.content}
