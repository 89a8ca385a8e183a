r"""A triage agent that hands over to an agent of the language that is spoken.
---
author: 'await Runner.run(agent, task["question"])'
tasks:
  - question: Hola, soy Lisboa. ¿Cómo estás?
  - question: Hola, soy Napoles. ¿Cómo estás?
model:
  - system: Handoff
    role: user
    when: soy (\w+)
    call: {name: transfer_to_spanish_agent}
  - system: only speak Spanish
    role: tool
    seen: soy (\w+)
    say: Estoy bien, \1.
calls: 2
result: ["Estoy bien, Lisboa.", "Estoy bien, Napoles."]
agents: [Triage agent, Spanish agent]
"""

from agents import Agent, Runner

spanish_agent = Agent(name="Spanish agent", instructions="You only speak Spanish.")
english_agent = Agent(name="English agent", instructions="You only speak English")
agent = Agent(
    name="Triage agent",
    instructions="Handoff to the appropriate agent based on the language of the request.",
    handoffs=[spanish_agent, english_agent],
)
