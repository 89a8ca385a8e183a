r"""A handoff with an input type, a callback, a filter of the history, and the recommended prompt prefix.
---
run: main
author: await main(task)
tasks:
  - question: Lighthouse lamp is broken, I want my money back.
  - question: Submarine lamp is broken, I want my money back.
model:
  - system: You decide
    role: user
    when: (\w+) lamp
    call: {name: escalate, arguments: {reason: 'broken \1 lamp'}}
  - system: You refund
    seen: (\w+) lamp
    say: The money for the \1 lamp is on its way.
calls: 2
result: [the Lighthouse lamp is on its way, the Submarine lamp is on its way]
agents: [Desk, Refunds]
"""

from agents import Agent, RunContextWrapper, Runner, handoff
from agents.extensions import handoff_filters
from agents.extensions.handoff_prompt import RECOMMENDED_PROMPT_PREFIX
from pydantic import BaseModel

reasons = []


class EscalationData(BaseModel):
    reason: str


async def on_handoff(ctx: RunContextWrapper[None], input_data: EscalationData):
    reasons.append(input_data.reason)


refunds = Agent(name="Refunds", instructions=f"{RECOMMENDED_PROMPT_PREFIX} You refund.")
desk = Agent(
    name="Desk",
    instructions="You decide where to send customers.",
    handoffs=[
        handoff(
            refunds,
            tool_name_override="escalate",
            tool_description_override="Escalate to refunds.",
            on_handoff=on_handoff,
            input_type=EscalationData,
            input_filter=handoff_filters.remove_all_tools,
        )
    ],
)


async def main(task):
    result = await Runner.run(desk, task["question"])
    return result.final_output, result.last_agent.name, list(reasons)
