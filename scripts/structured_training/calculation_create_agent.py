# pyright: basic
"""A LangChain agent with a response format: the calculation that a word problem needs."""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr


class Calculation(BaseModel):
    """The calculation that a word problem needs."""

    expression: str


model = ChatOpenAI(
    model="gpt-4.1-mini",
    base_url="https://api.openai.com/v1",
    api_key=SecretStr("sk-your-key-here"),
    temperature=0,
    max_completion_tokens=64,
)

agent = create_agent(
    model,
    system_prompt="Which calculation is it? Answer in JSON.",
    response_format=Calculation,
    name="calculation_agent",
)
