# pyright: basic
"""A chain with structured output: which operation a word problem needs."""

from typing import Literal

from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field, SecretStr


class Solution(BaseModel):
    """The operation that solves a word problem."""

    operation: Literal["addition", "subtraction", "multiplication"] = Field(description="What to do with the numbers")


prompt = ChatPromptTemplate.from_messages(
    [
        ("system", "Which operation solves the problem: addition, subtraction or multiplication? Answer in JSON."),
        ("human", "{question}"),
    ]
)

model = ChatOpenAI(
    model="gpt-4.1-mini",
    base_url="https://api.openai.com/v1",
    api_key=SecretStr("sk-your-key-here"),
    temperature=0,
)

agent = prompt | model.with_structured_output(Solution, method="json_schema")
