r"""A client of a model server on this machine, whose address is written in the code.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
hosts: ['localhost:11434']
"""

from openai import OpenAI

client = OpenAI(base_url="http://localhost:11434/v1", api_key="ollama")


def agent(task):
    response = client.chat.completions.create(
        model="llama3.2", messages=[{"role": "user", "content": task["question"]}], max_tokens=200
    )
    return response.choices[0].message.content
