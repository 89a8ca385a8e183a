r"""A RunnableLambda around an async function.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
author: await agent.ainvoke(task)
"""

from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="gpt-4o-mini")


async def ask(inputs):
    message = await model.ainvoke([("system", "Be brief."), ("user", inputs["question"])])
    return {"answer": message.content, "length": len(message.content)}


agent = RunnableLambda(ask)
