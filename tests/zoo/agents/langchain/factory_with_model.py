r"""A factory with a default for the model's name, which makes a chain.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
author: build().invoke(task)
run: build
"""

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI


def build(model="gpt-4o-mini", temperature=0.0):
    return (
        ChatPromptTemplate.from_template("{question}")
        | ChatOpenAI(model=model, temperature=temperature)
        | StrOutputParser()
    )
