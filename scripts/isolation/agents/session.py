"""An agent and a session made once, and a function that goes on with the conversation."""

from agents import Agent, OpenAIChatCompletionsModel, Runner, SQLiteSession
from openai import AsyncOpenAI

model = OpenAIChatCompletionsModel(model="gpt-4o-mini", openai_client=AsyncOpenAI(api_key="sk-any"))
agent = Agent(name="Assistant", instructions="Reply in one sentence.", model=model)
session = SQLiteSession("conversation")


async def ask(task):
    result = await Runner.run(agent, task["question"], session=session)
    return result.final_output
