# pyright: basic
"""A chain with structured output: the calculation that a word problem needs."""

from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr


class calculator(BaseModel):  # the name of the tool that the example's policy knows
    """Evaluate an arithmetic expression."""

    expression: str


prompt = ChatPromptTemplate.from_messages([("system", "Use the calculator."), ("human", "{question}")])

model = ChatOpenAI(
    model="gpt-4.1-mini",
    base_url="https://api.openai.com/v1",
    api_key=SecretStr("sk-your-key-here"),
    temperature=0,
    max_completion_tokens=64,
)

agent = prompt | model.with_structured_output(calculator, method="function_calling")
