r"""A chain with PydanticOutputParser, whose result is a model.
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

from langchain_core.output_parsers import PydanticOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field


class Capital(BaseModel):
    country: str = Field(description="the country")
    known: bool


parser = PydanticOutputParser(pydantic_object=Capital)
prompt = PromptTemplate(
    template="{format_instructions}\n{question}",
    input_variables=["question"],
    partial_variables={"format_instructions": parser.get_format_instructions()},
)
agent = prompt | ChatOpenAI(model="gpt-4o-mini") | parser
