# pyright: basic
"""An agent of the OpenAI Agents SDK that answers a customer's question about a measure."""

from agents import Agent, ModelSettings, set_default_openai_api, set_default_openai_key

set_default_openai_key("sk-your-key-here")
set_default_openai_api("chat_completions")

agent = Agent(
    name="measures",
    model="gpt-4.1-mini",
    model_settings=ModelSettings(temperature=0),
    instructions="You reply to a customer abroad who asks about a measure.",
)
