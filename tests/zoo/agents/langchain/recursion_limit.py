r"""A loop that ends with a recursion limit.
---
author: 'agent.invoke({"messages": [{"role": "user", "content": task["question"]}]})'
tasks:
  - question: Search lighthouses
  - question: Search submarines
model:
  - seen: Search (\w+)
    call: {name: search, arguments: {query: \1}}
calls: 3
raises: "GraphRecursionError: Recursion limit of 6 reached"
agents: [searcher]
"""

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def search(query: str) -> str:
    """Search the web."""
    return f"nothing on {query}"


agent = create_agent(ChatOpenAI(model="gpt-4o-mini"), [search], name="searcher").with_config(recursion_limit=6)
