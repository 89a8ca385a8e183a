r"""ModelFallbackMiddleware and ToolRetryMiddleware.
---
author: 'await agent.ainvoke({"messages": [{"role": "user", "content": task["question"]}]})'
tasks:
  - question: Search lighthouses
  - question: Search submarines
model:
  - status: 503
    times: 1
  - role: user
    when: Search (\w+)
    call: {name: search, arguments: {query: \1}}
  - role: tool
    when: found (\w+)
    say: Here are \1.
calls: 2
result: [Here are lighthouses., Here are submarines.]
tools: [search]
agents: [searcher]
"""

from langchain.agents import create_agent
from langchain.agents.middleware import ModelFallbackMiddleware, ToolRetryMiddleware
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

tries = {}


@tool
def search(query: str) -> str:
    """Search the web."""
    tries[query] = tries.get(query, 0) + 1
    if tries[query] < 2:
        raise ConnectionError("not reached")
    return f"found {query}"


agent = create_agent(
    ChatOpenAI(model="gpt-4.1", max_retries=0),
    [search],
    middleware=[
        ModelFallbackMiddleware(ChatOpenAI(model="gpt-4.1-mini", max_retries=0)),
        ToolRetryMiddleware(max_retries=2, initial_delay=0.01, jitter=False),
    ],
    name="searcher",
)
