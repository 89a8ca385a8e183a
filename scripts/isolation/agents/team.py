"""A team of two assistants made once, and a function that has it answer a question."""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

model = OpenAIChatCompletionClient(model="gpt-4o-mini", api_key="sk-any")
writer = AssistantAgent("writer", model_client=model, system_message="Answer the question.")
critic = AssistantAgent("critic", model_client=model, system_message="Criticise the answer.")
team = RoundRobinGroupChat([writer, critic], max_turns=2)


async def ask(task):
    result = await team.run(task=task["question"])
    return result.messages[-1].content
