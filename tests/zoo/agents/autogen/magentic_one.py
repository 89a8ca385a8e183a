r"""A MagenticOneGroupChat with one assistant; its orchestrator asks for ledgers as JSON.
---
author: 'await agent.run(task=task["question"])'
tasks:
  - question: Give a proof sketch for Fermat.
  - question: Give a proof sketch for Euler.
model:
  - when: pre-survey|GIVEN OR VERIFIED
    say: Nothing is given.
  - when: bullet-point plan
    say: Ask the assistant.
  - when: 'pure JSON format'
    seen: sketch for (\w+)\..*First, \w+ is right
    say: '{"is_request_satisfied": {"reason": "done", "answer": true}, "is_progress_being_made": {"reason": "yes", "answer": true}, "is_in_loop": {"reason": "no", "answer": false}, "instruction_or_question": {"reason": "none", "answer": "none"}, "next_speaker": {"reason": "none", "answer": "Assistant"}}'
  - when: 'pure JSON format'
    seen: sketch for (\w+)
    say: '{"is_request_satisfied": {"reason": "not yet", "answer": false}, "is_progress_being_made": {"reason": "yes", "answer": true}, "is_in_loop": {"reason": "no", "answer": false}, "instruction_or_question": {"reason": "needed", "answer": "Sketch the proof for \1."}, "next_speaker": {"reason": "the only one", "answer": "Assistant"}}'
  - when: Sketch the proof for (\w+)
    say: First, \1 is right by induction.
  - when: final answer
    seen: sketch for (\w+)
    say: The proof for \1 goes by induction.
calls: 6
result: [proof for Fermat goes, proof for Euler goes]
agents: [Assistant, "None"]
"""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import MagenticOneGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

model_client = OpenAIChatCompletionClient(model="gpt-4o")
assistant = AssistantAgent("Assistant", model_client=model_client)
agent = MagenticOneGroupChat([assistant], model_client=model_client, max_turns=5)
