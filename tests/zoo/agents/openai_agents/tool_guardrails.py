r"""Guardrails of a tool: one rejects an argument with a message to the model, one replaces an output.
---
author: 'await Runner.run(agent, task["question"])'
tasks:
  - question: Write to Lighthouse.
  - question: Write to Submarine.
model:
  - role: user
    when: Write to (\w+)
    call: {name: send_email, arguments: {to: \1, body: 'here is the password'}}
  - role: tool
    when: no secrets
    seen: Write to (\w+)
    call: {name: send_email, arguments: {to: \1, body: 'hello'}}
  - role: tool
    when: 'Sent to (\w+)'
    say: I wrote to \1.
calls: 3
result: [I wrote to Lighthouse., I wrote to Submarine.]
agents: [Secretary]
"""

import json

from agents import (
    Agent,
    Runner,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrailData,
    ToolOutputGuardrailData,
    function_tool,
    tool_input_guardrail,
    tool_output_guardrail,
)


@tool_input_guardrail
def no_secrets(data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
    arguments = json.loads(data.context.tool_arguments or "{}")
    if "password" in arguments.get("body", ""):
        return ToolGuardrailFunctionOutput.reject_content("Blocked: no secrets in mails.")
    return ToolGuardrailFunctionOutput.allow()


@tool_output_guardrail
def short_output(data: ToolOutputGuardrailData) -> ToolGuardrailFunctionOutput:
    if len(str(data.output)) > 200:
        return ToolGuardrailFunctionOutput.raise_exception("too long")
    return ToolGuardrailFunctionOutput.allow()


@function_tool(tool_input_guardrails=[no_secrets], tool_output_guardrails=[short_output])
def send_email(to: str, body: str) -> str:
    """Send an email."""
    return f"Sent to {to}: {body}"


agent = Agent(name="Secretary", instructions="You send emails.", tools=[send_email])


def main():
    print(Runner.run_sync(agent, "Write to Jane.").final_output)
