r"""A lazy assistant in a team, which hands over to the user; the team is run again with what the user answers.
---
author: asyncio.run(main(task))
run: main
tasks:
  - question: What is the weather in Lisbon?
  - question: What is the weather in Oslo?
model:
  - role: user
    when: What is the weather
    call: {name: transfer_to_user}
  - role: user
    when: The weather in (\w+) is (\w+)
    say: Great! Enjoy the \2 day in \1! TERMINATE
calls: 2
result: [day in Lisbon!, day in Oslo!]
agents: [lazy_assistant]
"""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import Handoff
from autogen_agentchat.conditions import HandoffTermination, TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def main(task):
    model_client = OpenAIChatCompletionClient(model="gpt-4o")
    lazy_agent = AssistantAgent(
        "lazy_assistant",
        model_client=model_client,
        handoffs=[Handoff(target="user", message="Transfer to user.")],
        system_message="If you cannot complete the task, transfer to user. Otherwise, when finished, say 'TERMINATE'.",
    )
    termination = HandoffTermination(target="user") | TextMentionTermination("TERMINATE")
    team = RoundRobinGroupChat([lazy_agent], termination_condition=termination)

    first = await team.run(task=task["question"])
    assert first.messages[-1].type == "HandoffMessage"
    city = task["question"].rstrip("?").split()[-1]
    second = await team.run(task=f"The weather in {city} is sunny.")
    await model_client.close()
    return second
