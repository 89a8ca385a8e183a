r"""with_structured_output of a pydantic model.
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

from langchain_core.prompts import PromptTemplate
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Capital(BaseModel):
    country: str
    known: bool


agent = PromptTemplate.from_template("{question}") | ChatOpenAI(model="gpt-4o-mini").with_structured_output(Capital)
