r"""Limits of calls, and PII that is redacted.
---
author: 'agent.invoke({"messages": [{"role": "user", "content": task["question"]}]})'
tasks:
  - question: Search lighthouses for anna@example.com
  - question: Search submarines for anna@example.com
model:
  - when: ""
    seen: Search (\w+) for .REDACTED
    call: {name: search, arguments: {query: \1}}
calls: 3
result: Model call limits exceeded
tools: [search]
agents: [searcher]
"""

from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware, PIIMiddleware
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def search(query: str) -> str:
    """Search the web."""
    return f"nothing on {query}"


agent = create_agent(
    ChatOpenAI(model="gpt-4o-mini"),
    [search],
    middleware=[PIIMiddleware("email", strategy="redact"), ModelCallLimitMiddleware(run_limit=3)],
    name="searcher",
)
