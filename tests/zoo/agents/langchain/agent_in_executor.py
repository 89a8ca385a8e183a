r"""Graphs run in a thread pool with the context copied.
---
tasks:
  - topics: [apples, apricots]
  - topics: [beetroot, broccoli]
model:
  - when: ^Describe (\w+)
    say: \1 are good.
calls: 2
result: [apricots are good., broccoli are good.]
agents: [describer]
"""

import contextvars
from concurrent.futures import ThreadPoolExecutor

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

graph = create_agent(ChatOpenAI(model="gpt-4o-mini"), [], name="describer")


def describe(topic):
    return graph.invoke({"messages": [("user", f"Describe {topic}")]})["messages"][-1].content


def agent(task):
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(contextvars.copy_context().run, describe, topic) for topic in task["topics"]]
        return [future.result() for future in futures]
