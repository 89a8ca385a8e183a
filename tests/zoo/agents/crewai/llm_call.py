r"""An LLM called directly, with messages and with a base_url and key of its own.
---
tasks:
  - question: Who built the Eiffel Tower?
  - question: Who built the Taj Mahal?
model:
  - when: built the (\w+)
    say: \1 had an architect.
calls: 2
result: [Eiffel had an architect., Taj had an architect.]
hosts: ["llm.example.com:8000"]
"""

from crewai import LLM

local = LLM(
    model="openai/my-model",
    base_url="http://llm.example.com:8000/v1",
    api_key="sk-local",
    temperature=0.5,
    timeout=30,
    max_tokens=200,
)
hosted = LLM(model="gpt-4o-mini", stop=["END"])


def agent(task):
    first = local.call(task["question"])
    second = hosted.call([{"role": "system", "content": "Be brief."}, {"role": "user", "content": task["question"]}])
    return [first, second]
