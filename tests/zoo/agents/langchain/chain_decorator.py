r"""A function with the @chain decorator that calls two models.
---
author: agent.invoke(task)
tasks:
  - question: lighthouses
  - question: submarines
model:
  - when: ^Draft on (\w+)
    say: draft on \1
  - when: ^Improve (.*)
    say: better \1
calls: 2
result: [better draft on lighthouses, better draft on submarines]
agents: [agent]
"""

from langchain_core.runnables import chain
from langchain_openai import ChatOpenAI

drafter = ChatOpenAI(model="gpt-4o-mini", temperature=0.7)
editor = ChatOpenAI(model="gpt-4o", temperature=0)


@chain
def agent(inputs):
    draft = drafter.invoke(f"Draft on {inputs['question']}").content
    return editor.invoke(f"Improve {draft}").content
