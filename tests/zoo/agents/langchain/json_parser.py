r"""A chain with JsonOutputParser.
---
author: agent.invoke(task)
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: '{"country": "\1", "known": true}'
calls: 1
result: ['"country": "France"', '"country": "Kenya"']
"""

from langchain_core.output_parsers import JsonOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_openai import ChatOpenAI

agent = PromptTemplate.from_template("Reply in JSON. {question}") | ChatOpenAI(model="gpt-4o-mini") | JsonOutputParser()
