r"""A coder and a CodeExecutorAgent that runs its blocks on the local command line.
---
run: main
author: await main(task)
tasks:
  - number: 6151
  - number: 7283
model:
  - when: Double (\d+)
    say: |
      Run this.
      ```python
      print(2 * \1)
      ```
  - when: (\d+)
    say: The output is \1. TERMINATE
calls: 2
result: [The output is 12302., The output is 14566.]
agents: [coder]
"""

import tempfile

from autogen_agentchat.agents import ApprovalRequest, ApprovalResponse, AssistantAgent, CodeExecutorAgent
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.code_executors.local import LocalCommandLineCodeExecutor
from autogen_ext.models.openai import OpenAIChatCompletionClient


def approve(request: ApprovalRequest) -> ApprovalResponse:
    return ApprovalResponse(approved="import os" not in request.code, reason="no operating system calls")


async def main(task):
    model_client = OpenAIChatCompletionClient(model="gpt-4o")
    with tempfile.TemporaryDirectory() as work_dir:
        async with LocalCommandLineCodeExecutor(work_dir=work_dir, timeout=300) as executor:
            coder = AssistantAgent("coder", model_client=model_client)
            runner = CodeExecutorAgent("runner", code_executor=executor, approval_func=approve)
            team = RoundRobinGroupChat([coder, runner], termination_condition=TextMentionTermination("TERMINATE"))
            result = await team.run(task=f"Double {task['number']} with a script.")
    await model_client.close()
    return result.messages[-1].to_text()
