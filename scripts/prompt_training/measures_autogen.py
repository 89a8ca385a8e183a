# pyright: basic
"""An AutoGen team: a converter answers a question about a measure, and an editor writes the reply."""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

model_client = OpenAIChatCompletionClient(
    model="gpt-4.1-mini",
    api_key="sk-your-key-here",
    temperature=0,
)

converter = AssistantAgent(
    name="converter",
    model_client=model_client,
    system_message="You work out a measure for a customer abroad.",
)
editor = AssistantAgent(
    name="editor",
    model_client=model_client,
    system_message="You edit the last message into a reply to the customer.",
)

agent = RoundRobinGroupChat([converter, editor], max_turns=2)
