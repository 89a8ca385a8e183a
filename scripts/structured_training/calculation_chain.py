# pyright: basic
"""A LangChain chain with structured output: the calculation that a word problem needs."""

from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr


class Calculation(BaseModel):
    """The calculation that a word problem needs."""

    expression: str


prompt = ChatPromptTemplate.from_messages(
    [("system", "Which calculation is it? Answer in JSON."), ("human", "{question}")]
)

model = ChatOpenAI(
    model="gpt-4.1-mini",
    base_url="https://api.openai.com/v1",
    api_key=SecretStr("sk-your-key-here"),
    temperature=0,
    max_completion_tokens=64,
)

agent = prompt | model.with_structured_output(Calculation, method="json_schema")
