r"""An orchestrator whose tools are two other agents, called in one answer.
---
author: 'await Runner.run(agent, task["question"])'
tasks:
  - question: Say Lighthouse in Spanish and in French.
  - question: Say Submarine in Spanish and in French.
model:
  - system: translation agent
    role: user
    when: Say (\w+)
    calls:
      - {name: translate_to_spanish, arguments: {input: \1}}
      - {name: translate_to_french, arguments: {input: \1}}
  - system: to Spanish
    when: (\w+)
    say: el \1
  - system: to French
    when: (\w+)
    say: le \1
  - system: translation agent
    role: tool
    seen: el (\w+).*le \w+
    say: Both words for \1 are known.
calls: 4
result: [Both words for Lighthouse are known., Both words for Submarine are known.]
agents: [orchestrator_agent, Spanish agent, French agent]
tools: [translate_to_spanish, translate_to_french]
"""

from agents import Agent, Runner

spanish_agent = Agent(name="Spanish agent", instructions="You translate the user's message to Spanish")
french_agent = Agent(name="French agent", instructions="You translate the user's message to French")

agent = Agent(
    name="orchestrator_agent",
    instructions="You are a translation agent. You use the tools given to you to translate.",
    tools=[
        spanish_agent.as_tool("translate_to_spanish", "Translate the user's message to Spanish"),
        french_agent.as_tool("translate_to_french", "Translate the user's message to French"),
    ],
)


async def main():
    result = await Runner.run(agent, input="Say 'Hello, how are you?' in Spanish.")
    print(result.final_output)
