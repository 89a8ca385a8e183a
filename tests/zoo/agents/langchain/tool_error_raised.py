r"""A tool that raises, which nothing handles.
---
author: 'agent.invoke({"messages": [{"role": "user", "content": task["question"]}]})'
tasks:
  - question: Open lighthouses
  - question: Open submarines
model:
  - when: Open (\w+)
    call: {name: open_door, arguments: {which: \1}}
calls: 1
raises: "PermissionError: closed"
agents: [doorman]
"""

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def open_door(which: str) -> str:
    """Open a door."""
    raise PermissionError("closed")


agent = create_agent(ChatOpenAI(model="gpt-4o-mini"), [open_door], name="doorman")
