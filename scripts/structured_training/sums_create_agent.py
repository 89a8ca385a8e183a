# pyright: basic
"""A LangChain agent with a response format: the sum of two numbers."""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr


class Solution(BaseModel):
    """The result of a calculation."""

    result: int


model = ChatOpenAI(
    model="gpt-4.1-mini",
    base_url="https://api.openai.com/v1",
    api_key=SecretStr("sk-your-key-here"),
    temperature=0,
)

agent = create_agent(
    model,
    system_prompt="You are a calculator. Reply with the result in JSON.",
    response_format=Solution,
    name="sums_agent",
)
