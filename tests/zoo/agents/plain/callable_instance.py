r"""An object with __call__ that holds its client and its prompt.
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


class Assistant:
    def __init__(self, model, system):
        self.client = OpenAI()
        self.model = model
        self.system = system

    def __call__(self, task):
        completion = self.client.chat.completions.create(
            model=self.model,
            messages=[{"role": "system", "content": self.system}, {"role": "user", "content": task["question"]}],
        )
        return completion.choices[0].message.content


agent = Assistant("gpt-4o-mini", "You are concise.")
