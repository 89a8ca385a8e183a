r"""SummarizationMiddleware over a long conversation.
---
author: 'agent.invoke({"messages": task["messages"]})'
tasks:
  - messages:
      - {role: user, content: Tell me about lighthouses.}
      - {role: assistant, content: They are tall.}
      - {role: user, content: "And their lamps?"}
      - {role: assistant, content: They are bright.}
      - {role: user, content: "And lighthouses' keepers?"}
  - messages:
      - {role: user, content: Tell me about submarines.}
      - {role: assistant, content: They are long.}
      - {role: user, content: "And their engines?"}
      - {role: assistant, content: They are silent.}
      - {role: user, content: "And submarines' captains?"}
model:
  - when: Messages to summarize
    seen: about (\w+)
    say: It was about \1.
  - when: (\w+) of (\w+)\?|And (\w+)' (\w+)
    say: Their work is hard.
calls: 2
result: Their work is hard.
agents: [guide]
"""

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="gpt-4o-mini")
agent = create_agent(
    model,
    [],
    middleware=[SummarizationMiddleware(model=model, trigger=("messages", 4), keep=("messages", 1))],
    name="guide",
)
