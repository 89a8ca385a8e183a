r"""Model settings of the agent and of the run: temperature, a bound on tokens, forced and serial tools, truncation.
---
run: main
author: await main(task)
tasks:
  - question: Look up Lighthouse.
  - question: Look up Submarine.
model:
  - role: user
    when: up (\w+)
    call: {name: look_up, arguments: {word: \1}}
  - role: tool
    when: (\w+) means
    say: \1 means much.
calls: 2
result: [Lighthouse means much., Submarine means much.]
agents: [Dictionary]
tools: [look_up]
"""

from agents import Agent, ModelSettings, RunConfig, Runner, function_tool


@function_tool(name_override="look_up", description_override="Look a word up.")
def look_up_a_word(word: str) -> str:
    return f"{word} means something"


dictionary = Agent(
    name="Dictionary",
    instructions="Use your tool.",
    tools=[look_up_a_word],
    model="gpt-4.1-mini",
    model_settings=ModelSettings(
        temperature=0.3,
        top_p=0.9,
        max_tokens=300,
        tool_choice="look_up",
        parallel_tool_calls=False,
        truncation="auto",
        store=False,
        metadata={"team": "words"},
    ),
)


async def main(task):
    config = RunConfig(
        model="gpt-4.1", model_settings=ModelSettings(temperature=0.7), workflow_name="Dictionary", group_id="g1"
    )
    result = await Runner.run(dictionary, task["question"], run_config=config)
    return result.final_output
