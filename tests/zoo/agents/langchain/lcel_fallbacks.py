r"""A model with fallbacks: the first fails with a server error.
---
author: agent.invoke(task)
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - status: 500
    times: 1
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
agents: [agent]
"""

from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

first = ChatOpenAI(model="gpt-4o", max_retries=0)
second = ChatOpenAI(model="gpt-4o-mini", max_retries=0)
agent = ChatPromptTemplate.from_template("{question}") | first.with_fallbacks([second])
