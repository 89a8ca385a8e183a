r"""batch over the lines of a question.
---
tasks:
  - topics: [apples, apricots, avocados]
  - topics: [beetroot, broccoli, beans]
model:
  - when: ^Describe (\w+)
    say: \1 are good
calls: 3
result: [avocados are good, beans are good]
agents: [agent]
"""

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

chain = ChatPromptTemplate.from_template("Describe {topic}") | ChatOpenAI(model="gpt-4o-mini") | StrOutputParser()


def agent(task):
    return chain.batch([{"topic": topic} for topic in task["topics"]], config={"max_concurrency": 2})
