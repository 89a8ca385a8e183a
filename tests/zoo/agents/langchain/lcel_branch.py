r"""A router chain with RunnableBranch and RunnablePassthrough.assign.
---
author: agent.invoke(task)
tasks:
  - question: Why is the sky blue?
  - question: Write about autumn.
model:
  - when: Classify.*sky
    say: science
  - when: Classify.*autumn
    say: art
  - system: scientist
    say: Light is scattered.
  - system: poet
    say: Leaves are falling.
calls: 2
result: [Light is scattered., Leaves are falling.]
agents: [agent]
"""

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableBranch, RunnablePassthrough
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="gpt-4o-mini")
classify = ChatPromptTemplate.from_template("Classify: {question}") | model | StrOutputParser()
science = ChatPromptTemplate.from_messages([("system", "You are a scientist."), ("user", "{question}")]) | model
art = ChatPromptTemplate.from_messages([("system", "You are a poet."), ("user", "{question}")]) | model
agent = RunnablePassthrough.assign(kind=classify) | RunnableBranch((lambda x: "science" in x["kind"], science), art)
