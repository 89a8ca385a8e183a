r"""Long-term memory in an InMemoryStore that tools read and write.
---
author: 'agent.invoke({"messages": [{"role": "user", "content": task["question"]}]})'
tasks:
  - question: Remember that I like lighthouses.
  - question: Remember that I like submarines.
model:
  - role: user
    when: I like (\w+)
    call: {name: remember, arguments: {what: \1}}
  - role: tool
    when: ^saved
    call: {name: recall, arguments: {}}
  - role: tool
    when: likes (.*)
    say: You like \1.
calls: 3
result: [You like lighthouses., You like submarines.]
tools: [recall, remember]
agents: [memory]
state: len(store.search(("likes",)))
"""

from langchain.agents import create_agent
from langchain.tools import ToolRuntime, tool
from langchain_openai import ChatOpenAI
from langgraph.store.memory import InMemoryStore

store = InMemoryStore()


@tool
def remember(what: str, runtime: ToolRuntime) -> str:
    """Remember what the user likes."""
    runtime.store.put(("likes",), what, {"text": what})
    return "saved"


@tool
def recall(runtime: ToolRuntime) -> str:
    """Recall what the user likes."""
    return "likes " + ", ".join(item.value["text"] for item in runtime.store.search(("likes",)))


agent = create_agent(ChatOpenAI(model="gpt-4o-mini"), [remember, recall], store=store, name="memory")
