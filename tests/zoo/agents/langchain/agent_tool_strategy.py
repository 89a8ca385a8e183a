r"""create_agent with a ToolStrategy for the final answer.
---
author: 'agent.invoke({"messages": [{"role": "user", "content": task["question"]}]})'
tasks:
  - question: Alice is 31 years old.
  - question: Bruno is 47 years old.
model:
  - when: (\w+) is (\d+) years
    call: {name: Person, arguments: '{"name": "\1", "age": \2}'}
calls: 1
result: ['"name": "Alice"', '"name": "Bruno"']
agents: [extractor]
"""

from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Person(BaseModel):
    """A person and their age."""

    name: str
    age: int


agent = create_agent(ChatOpenAI(model="gpt-4o-mini"), [], response_format=ToolStrategy(Person), name="extractor")
