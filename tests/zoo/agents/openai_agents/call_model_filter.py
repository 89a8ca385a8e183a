r"""A filter that changes what the model reads, inside a custom span.
---
run: main
author: await main(task)
tasks:
  - question: Repeat Lighthouse to me.
  - question: Repeat Submarine to me.
model:
  - when: REPEAT (\w+) TO
    say: You said \1.
calls: 1
result: [You said LIGHTHOUSE., You said SUBMARINE.]
agents: [Parrot]
"""

from agents import Agent, RunConfig, Runner, custom_span
from agents.run import CallModelData, ModelInputData


def shout(data: CallModelData) -> ModelInputData:
    items = [{**item, "content": item["content"].upper()} for item in data.model_data.input]
    return ModelInputData(input=items, instructions=data.model_data.instructions)


parrot = Agent(name="Parrot", instructions="Repeat.")


async def main(task):
    with custom_span("shouting"):
        result = await Runner.run(parrot, task["question"], run_config=RunConfig(call_model_input_filter=shout))
    return result.final_output
