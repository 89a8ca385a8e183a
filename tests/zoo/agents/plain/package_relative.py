r"""A package with relative imports and a module of settings.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]

run: assistant.main:answer
author: answer(task)
files:
  assistant/__init__.py: ""
  assistant/settings.py: |
    MODEL = "gpt-4o-mini"
    PROMPT = "You are a teacher."
  assistant/llm.py: |
    from openai import OpenAI
    from . import settings
    client = OpenAI()
    def complete(text):
        messages = [{"role": "system", "content": settings.PROMPT}, {"role": "user", "content": text}]
        return client.chat.completions.create(model=settings.MODEL, messages=messages).choices[0].message.content
  assistant/main.py: |
    from .llm import complete
    def answer(task):
        return complete(task["question"])
"""

"""The package is made of the files that the docstring lists."""
