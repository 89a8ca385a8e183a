r"""An output guardrail that objects to a phone number; the exception ends the run.
---
author: 'await Runner.run(agent, task["question"])'
tasks:
  - question: What is the number of Lighthouse?
  - question: What is the number of Submarine?
model:
  - when: number of (\w+)
    say: The number of \1 is 650-123-4567.
calls: 1
raises: OutputGuardrailTripwireTriggered
agents: [Assistant]
"""

from agents import Agent, GuardrailFunctionOutput, RunContextWrapper, Runner, output_guardrail


@output_guardrail
async def no_numbers(context: RunContextWrapper, agent: Agent, output: str) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(output_info={"650": "650" in output}, tripwire_triggered="650" in output)


agent = Agent(name="Assistant", instructions="You are a helpful assistant.", output_guardrails=[no_numbers])


async def main():
    await Runner.run(agent, "My phone number is 650-123-4567. Where do you think I live?")
