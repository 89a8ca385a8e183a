r"""A ModelProvider of one's own, given with the RunConfig, so that each agent's model comes from it.
---
run: main
author: await main(task)
tasks:
  - question: What is the weather in Lisbon?
  - question: What is the weather in Oslo?
model:
  - role: user
    when: weather in (\w+)
    call: {name: get_weather, arguments: {city: \1}}
  - role: tool
    when: (.*)
    say: Seen. \1
calls: 2
result: [Seen. Lisbon is sunny, Seen. Oslo is sunny]
agents: [Assistant]
tools: [get_weather]
hosts: ["models.example.com:443"]
"""

from agents import (
    Agent,
    Model,
    ModelProvider,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI

client = AsyncOpenAI(base_url="https://models.example.com/v1", api_key="sk-mine")


class CustomModelProvider(ModelProvider):
    def get_model(self, model_name: str | None) -> Model:
        return OpenAIChatCompletionsModel(model=model_name or "big-model", openai_client=client)


provider = CustomModelProvider()


@function_tool
def get_weather(city: str):
    print(f"[debug] getting weather for {city}")
    return f"{city} is sunny"


async def main(task):
    agent = Agent(name="Assistant", instructions="You only respond in short.", tools=[get_weather])
    result = await Runner.run(
        agent, task["question"], run_config=RunConfig(model_provider=provider, tracing_disabled=True)
    )
    return result.final_output
