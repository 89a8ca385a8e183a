r"""RunnableParallel with two chains, and a third one that reads both.
---
author: await agent.ainvoke(task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - when: joke about (\w+)
    say: A joke on \1.
  - when: poem about (\w+)
    say: A poem on \1.
  - when: Choose.*poem on (\w+)
    say: The poem on \1 wins.
calls: 3
result: [The poem on lighthouses wins., The poem on submarines wins.]
agents: [agent]
"""

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableParallel
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="gpt-4o-mini")
joke = ChatPromptTemplate.from_template("Tell a joke about {topic}") | model | StrOutputParser()
poem = ChatPromptTemplate.from_template("Write a poem about {topic}") | model | StrOutputParser()
choose = ChatPromptTemplate.from_template("Choose:\n{joke}\n{poem}") | model | StrOutputParser()
agent = RunnableParallel(joke=joke, poem=poem) | choose
