r"""The functional API: @entrypoint with @task.
---
author: agent.invoke(task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - when: ^Outline (\w+)
    say: parts of \1
  - when: ^Check
    say: checked
  - when: ^Essay on (.*)
    say: All about \1.
calls: 3
result: [All about parts of lighthouses., All about parts of submarines.]
"""

from langchain_openai import ChatOpenAI
from langgraph.func import entrypoint, task

model = ChatOpenAI(model="gpt-4o-mini")


@task
def outline(topic):
    return model.invoke(f"Outline {topic}").content


@task
def check(text):
    return model.invoke(f"Check {text}").content


@entrypoint()
def agent(inputs):
    plan = outline(inputs["topic"]).result()
    checked = check(plan)
    essay = model.invoke(f"Essay on {plan}").content
    return {"essay": essay, "check": checked.result()}
