r"""An input guardrail in which another agent is asked, run beside the agent; it lets the question through.
---
run: main
author: await main(task)
tasks:
  - question: How do I reach Lisbon?
  - question: How do I reach Naples?
model:
  - system: Check if
    when: reach (\w+)
    say: allowed
  - system: customer support
    when: reach (\w+)
    say: Take the ferry to \1.
calls: 2
result: [ferry to Lisbon, ferry to Naples]
agents: [Guardrail check, Customer support agent]
"""

from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    RunContextWrapper,
    Runner,
    TResponseInputItem,
    input_guardrail,
)

guardrail_agent = Agent(
    name="Guardrail check",
    instructions="Check if the user asks for their homework. Answer 'homework' or 'allowed'.",
)


@input_guardrail
async def homework_guardrail(
    ctx: RunContextWrapper[None], agent: Agent, input: str | list[TResponseInputItem]
) -> GuardrailFunctionOutput:
    result = await Runner.run(guardrail_agent, input, context=ctx.context)
    return GuardrailFunctionOutput(
        output_info=result.final_output, tripwire_triggered="homework" in result.final_output
    )


support = Agent(
    name="Customer support agent",
    instructions="You are a customer support agent.",
    input_guardrails=[homework_guardrail],
)


async def main(task):
    try:
        result = await Runner.run(support, task["question"])
    except InputGuardrailTripwireTriggered:
        return "Sorry, I can't help with homework."
    return result.final_output
