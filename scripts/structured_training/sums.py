# pyright: basic
"""A chain with structured output: the sum of two numbers."""

from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr


class Solution(BaseModel):
    """The result of a calculation."""

    result: int


prompt = ChatPromptTemplate.from_messages(
    [("system", "You are a calculator. Reply with the result in JSON."), ("human", "{question}")]
)

model = ChatOpenAI(
    model="gpt-4.1-mini",
    base_url="https://api.openai.com/v1",
    api_key=SecretStr("sk-your-key-here"),
    temperature=0,
)

agent = prompt | model.with_structured_output(Solution, method="json_schema")
