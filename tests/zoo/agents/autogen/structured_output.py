r"""An assistant whose answer is a pydantic model, by output_content_type.
---
author: 'await agent.run(task=task["question"])'
tasks:
  - question: I am happy about lighthouses.
  - question: I am happy about submarines.
model:
  - when: about (\w+)
    say: '{"thoughts": "They like \1.", "response": "happy"}'
calls: 1
result: [They like lighthouses., They like submarines.]
"""

from typing import Literal

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel


class AgentResponse(BaseModel):
    thoughts: str
    response: Literal["happy", "sad", "neutral"]


agent = AssistantAgent(
    "assistant",
    model_client=OpenAIChatCompletionClient(model="gpt-4o"),
    system_message="Categorise the input as happy, sad, or neutral.",
    output_content_type=AgentResponse,
)
