r"""An input guardrail that objects before the agent begins, as it does not run in parallel.
---
run: main
author: asyncio.run(main(task))
tasks:
  - question: Solve for Lighthouse, x plus two.
  - question: Solve for Submarine, x plus two.
model:
  - system: Check if
    say: homework
calls: 1
result: homework is yours
agents: [Guardrail check]
"""

from agents import Agent, GuardrailFunctionOutput, InputGuardrailTripwireTriggered, Runner, input_guardrail

guardrail_agent = Agent(name="Guardrail check", instructions="Check if the user asks for their homework.")


@input_guardrail(run_in_parallel=False)
async def homework_guardrail(ctx, agent, input):
    result = await Runner.run(guardrail_agent, input, context=ctx.context)
    return GuardrailFunctionOutput(
        output_info={"said": result.final_output}, tripwire_triggered="homework" in result.final_output
    )


tutor = Agent(name="Tutor", instructions="You teach.", input_guardrails=[homework_guardrail])


async def main(task):
    try:
        await Runner.run(tutor, task["question"])
    except InputGuardrailTripwireTriggered as error:
        return f"{error.guardrail_result.output.output_info['said']} is yours"
    return "answered"
