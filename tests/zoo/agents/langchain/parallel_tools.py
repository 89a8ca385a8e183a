r"""create_agent with tools that are called in parallel, one of which fails.
---
author: 'await agent.ainvoke({"messages": [{"role": "user", "content": task["question"]}]})'
tasks:
  - question: Divide 84 by 2 and by 0.
  - question: Divide 99 by 3 and by 0.
model:
  - role: user
    when: Divide (\d+) by (\d+)
    calls:
      - {name: divide, arguments: '{"a": \1, "b": \2}'}
      - {name: divide, arguments: '{"a": \1, "b": 0}'}
  - role: tool
    seen: result (\d+)
    say: It is \1, and the other cannot be.
calls: 2
result: ["It is 42, and", "It is 33, and"]
tools: [divide]
agents: [calculator]
"""

from langchain.agents import create_agent
from langchain_core.tools import ToolException, tool
from langchain_openai import ChatOpenAI


@tool
def divide(a: int, b: int) -> str:
    """Divide a by b."""
    if b == 0:
        raise ToolException("b must not be 0")
    return f"result {a // b}"


divide.handle_tool_error = True
agent = create_agent(ChatOpenAI(model="gpt-4.1"), [divide], name="calculator")
