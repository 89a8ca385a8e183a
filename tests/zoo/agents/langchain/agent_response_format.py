r"""create_agent with response_format.
---
author: 'agent.invoke({"messages": [{"role": "user", "content": task["question"]}]})'
tasks:
  - question: Alice is 31 years old.
  - question: Bruno is 47 years old.
model:
  - when: (\w+) is (\d+) years
    say: '{"name": "\1", "age": \2}'
calls: 1
result: ['"name": "Alice"', '"name": "Bruno"']
"""

from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


agent = create_agent(ChatOpenAI(model="gpt-4o-mini"), [], response_format=ProviderStrategy(Person), name="extractor")
