r"""with_structured_output by function calling.
---
author: agent.invoke(task)
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    call: {name: Capital, arguments: {country: \1, known: true}}
calls: 1
result: ['"country": "France"', '"country": "Kenya"']
"""

from langchain_core.prompts import PromptTemplate
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Capital(BaseModel):
    """A country, and whether its capital is known."""

    country: str
    known: bool


model = ChatOpenAI(model="gpt-4o-mini").with_structured_output(Capital, method="function_calling")
agent = PromptTemplate.from_template("{question}") | model
