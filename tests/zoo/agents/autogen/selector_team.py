r"""A SelectorGroupChat whose model chooses between a planner, a searcher with a tool, and an analyst.
---
author: 'await agent.run(task=task["question"])'
tasks:
  - question: How many points did Miami score?
  - question: How many points did Boston score?
model:
  - role: system
    seen: How many points.*planner:.*search_agent:.*Found (\d+) points.*from \[
    say: analyst
  - role: system
    seen: How many points.*planner:.*from \[
    say: search_agent
  - role: system
    seen: How many points.*from \[
    say: planner
  - system: You plan
    when: did (\w+) score
    say: 1. The searcher looks \1 up. 2. The analyst answers.
  - system: You search
    when: looks (\w+) up
    call: {name: search_web, arguments: {query: 'points of \1'}}
  - system: You analyse
    when: Found (\d+) points of (\w+)
    say: \2 scored \1 points. TERMINATE
calls: 6
result: [Miami scored 844 points., Boston scored 844 points.]
agents: [planner, search_agent, analyst, "None"]
tools: [search_web]
"""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.teams import SelectorGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

model_client = OpenAIChatCompletionClient(model="gpt-4o")


def search_web(query: str) -> str:
    return f"Found 844 {query}."


planner = AssistantAgent(
    "planner",
    description="An agent for planning tasks; it goes first.",
    model_client=model_client,
    system_message="You plan. Break the task into steps for your team.",
)
search_agent = AssistantAgent(
    "search_agent",
    description="An agent that searches the web.",
    tools=[search_web],
    model_client=model_client,
    system_message="You search. Make one call at a time.",
)
analyst = AssistantAgent(
    "analyst",
    description="An agent that calculates and answers.",
    model_client=model_client,
    system_message="You analyse what was found. End with TERMINATE.",
)

selector_prompt = """Select an agent to perform the task.

{roles}

Current conversation:
{history}

Read it, then select an agent from {participants} to go next. Select one only.
"""

agent = SelectorGroupChat(
    [planner, search_agent, analyst],
    model_client=model_client,
    termination_condition=TextMentionTermination("TERMINATE") | MaxMessageTermination(max_messages=25),
    selector_prompt=selector_prompt,
    allow_repeated_speaker=True,
)
