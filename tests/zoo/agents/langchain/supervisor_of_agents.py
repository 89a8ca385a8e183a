r"""A supervisor whose tools are agents.
---
author: 'agent.invoke({"messages": [{"role": "user", "content": task["question"]}]})'
tasks:
  - question: Write an email about lighthouses.
  - question: Write an email about submarines.
model:
  - system: supervisor
    role: user
    when: about (\w+)
    call: {name: write_email, arguments: {topic: \1}}
  - system: You write emails
    when: Email about (\w+)
    say: Dear all, \1 are fine.
  - system: supervisor
    role: tool
    when: all, (\w+)
    say: The email about \1 is written.
calls: 3
result: [The email about lighthouses is written., The email about submarines is written.]
agents: [supervisor, writer]
tools: [write_email]
"""

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="gpt-4o-mini")
writer = create_agent(model, [], system_prompt="You write emails.", name="writer")


@tool
def write_email(topic: str) -> str:
    """Write an email about a topic."""
    result = writer.invoke({"messages": [{"role": "user", "content": f"Email about {topic}"}]})
    return result["messages"][-1].text


agent = create_agent(model, [write_email], system_prompt="You are the supervisor.", name="supervisor")
