r"""A model with penalties and logit_bias.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
author: agent.invoke(task)
"""

from langchain_core.prompts import PromptTemplate
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="gpt-4o-mini", frequency_penalty=0.5, presence_penalty=0.2, logit_bias={"50256": -100})
agent = PromptTemplate.from_template("{question}") | model
