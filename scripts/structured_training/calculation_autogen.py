# pyright: basic
"""An AutoGen agent with an output content type: the calculation that a word problem needs."""

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel


class Calculation(BaseModel):
    """The calculation that a word problem needs."""

    expression: str


model_client = OpenAIChatCompletionClient(
    model="gpt-4.1-mini",
    api_key="sk-your-key-here",
    temperature=0,
    max_tokens=64,
)

agent = AssistantAgent(
    name="calculation_agent",
    model_client=model_client,
    system_message="Which calculation is it? Answer in JSON.",
    output_content_type=Calculation,
)
