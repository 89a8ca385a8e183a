r"""A graph with an InMemorySaver, and a second turn in the same thread.
---
tasks:
  - question: Tell me about lighthouses.
  - question: Tell me about submarines.
model:
  - when: about (\w+)
    say: There is much to say about \1.
  - when: Shorter
    seen: Tell me about (\w+)
    say: In short, \1 are remarkable.
calls: 2
result: [lighthouses are remarkable, submarines are remarkable]
agents: [guide]
state: 'len(graph.get_state({"configurable": {"thread_id": "1"}}).values["messages"])'
"""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

graph = create_agent(ChatOpenAI(model="gpt-4o-mini"), [], checkpointer=InMemorySaver(), name="guide")


def agent(task):
    config = {"configurable": {"thread_id": "1"}}
    graph.invoke({"messages": [{"role": "user", "content": task["question"]}]}, config)
    result = graph.invoke({"messages": [{"role": "user", "content": "Shorter, please."}]}, config)
    return result["messages"][-1].content
