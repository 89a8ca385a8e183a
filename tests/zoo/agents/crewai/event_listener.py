r"""A crew with an event listener of its author's, which prints when crews and tools end.
---
author: agent.kickoff(inputs=task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - when: about (\w+)
    say: Old \1.
calls: 1
result: [Old lighthouses., Old submarines.]
agents: [Teller]
state: listener.seen
"""

from crewai import Agent, Crew, Task
from crewai.events import AgentExecutionCompletedEvent, BaseEventListener, CrewKickoffStartedEvent


class Listener(BaseEventListener):
    def __init__(self):
        self.seen = []
        super().__init__()

    def setup_listeners(self, crewai_event_bus):
        @crewai_event_bus.on(CrewKickoffStartedEvent)
        def on_crew_started(source, event):
            self.seen.append(f"crew {event.crew_name}")

        @crewai_event_bus.on(AgentExecutionCompletedEvent)
        def on_agent_completed(source, event):
            self.seen.append(f"{event.agent.role} said {event.output}")


listener = Listener()
teller = Agent(role="Teller", goal="Tell", backstory="You tell.", llm="gpt-4o-mini")
tale = Task(description="Tell me about {topic}.", expected_output="A tale.", agent=teller)
agent = Crew(name="tellers", agents=[teller], tasks=[tale])
