r"""A generator over a chain's stream.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
author: '"".join(agent(task))'
agents: [agent]
"""

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

chain = ChatPromptTemplate.from_template("{question}") | ChatOpenAI(model="gpt-4o-mini") | StrOutputParser()


def agent(task):
    for chunk in chain.stream({"question": task["question"]}):
        print(chunk, end="|", flush=True)
        yield chunk
