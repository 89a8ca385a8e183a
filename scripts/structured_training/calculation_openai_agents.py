# pyright: basic
"""An agent of the OpenAI Agents SDK with an output type: the calculation that a word problem needs."""

from agents import Agent, ModelSettings, set_default_openai_key
from pydantic import BaseModel

set_default_openai_key("sk-your-key-here")


class Calculation(BaseModel):
    """The calculation that a word problem needs."""

    expression: str


agent = Agent(
    name="calculation_agent",
    model="gpt-4.1-mini",
    model_settings=ModelSettings(temperature=0, max_tokens=64),
    instructions="Which calculation is it? Answer in JSON.",
    output_type=Calculation,
)
