r"""A validation that raises an exception of the agent's own.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: I would rather not say.
calls: 1
raises: "UnusableAnswer: no city in 'I would rather not say.'"
"""

from openai import OpenAI

client = OpenAI()


class UnusableAnswer(Exception):
    def __init__(self, text, reason):
        super().__init__(f"{reason} in {text!r}")
        self.text = text


def agent(task):
    completion = client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": task["question"]}]
    )
    text = completion.choices[0].message.content
    if "Paris" not in text:
        raise UnusableAnswer(text, "no city")
    return text
