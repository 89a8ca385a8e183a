r"""A team loaded from its declarative configuration, a JSON file.
---
run: build_team
author: 'await build_team().run(task=task["question"])'
tasks:
  - question: Tell me about lighthouses.
  - question: Tell me about submarines.
model:
  - system: I am short
    when: about (\w+)
    say: \1 exist.
calls: 1
result: [lighthouses exist., submarines exist.]
agents: [teller]
files:
  team.json: |
    {
      "provider": "autogen_agentchat.teams.RoundRobinGroupChat",
      "component_type": "team",
      "version": 1,
      "config": {
        "participants": [
          {
            "provider": "autogen_agentchat.agents.AssistantAgent",
            "component_type": "agent",
            "version": 1,
            "config": {
              "name": "teller",
              "description": "An agent that tells things.",
              "model_client": {
                "provider": "autogen_ext.models.openai.OpenAIChatCompletionClient",
                "component_type": "model",
                "version": 1,
                "config": {"model": "gpt-4o"}
              },
              "system_message": "I am short.",
              "reflect_on_tool_use": false,
              "tool_call_summary_format": "{result}"
            }
          }
        ],
        "termination_condition": {
          "provider": "autogen_agentchat.conditions.MaxMessageTermination",
          "component_type": "termination",
          "version": 1,
          "config": {"max_messages": 2}
        }
      }
    }
"""

import json
from pathlib import Path

from autogen_agentchat.teams import RoundRobinGroupChat


def build_team():
    return RoundRobinGroupChat.load_component(json.loads(Path("team.json").read_text()))
