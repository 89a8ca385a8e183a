r"""A chain of prompt, model and StrOutputParser.
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
agents: [agent]
"""

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

prompt = ChatPromptTemplate.from_messages([("system", "You are a teacher."), ("user", "{question}")])
agent = prompt | ChatOpenAI(model="gpt-4o-mini", temperature=0) | StrOutputParser()
