# pyright: basic
"""An AutoGen agent with an output content type: the sum of two numbers."""

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel


class Solution(BaseModel):
    """The result of a calculation."""

    result: int


model_client = OpenAIChatCompletionClient(
    model="gpt-4.1-mini",
    api_key="sk-your-key-here",
    temperature=0,
)

agent = AssistantAgent(
    name="sums_agent",
    model_client=model_client,
    system_message="You are a calculator. Reply with the result in JSON.",
    output_content_type=Solution,
)
