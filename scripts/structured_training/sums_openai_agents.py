# pyright: basic
"""An agent of the OpenAI Agents SDK with an output type: the sum of two numbers."""

from agents import Agent, ModelSettings, set_default_openai_key
from pydantic import BaseModel

set_default_openai_key("sk-your-key-here")


class Solution(BaseModel):
    """The result of a calculation."""

    result: int


agent = Agent(
    name="sums_agent",
    model="gpt-4.1-mini",
    model_settings=ModelSettings(temperature=0),
    instructions="You are a calculator. Reply with the result in JSON.",
    output_type=Solution,
)
