r"""A @CrewBase class whose agents and tasks stand in YAML files, in a package as `crewai create` makes it.
---
run: latest_ai.crew:LatestAi
author: LatestAi().crew().kickoff(inputs=task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - system: Senior Data Researcher
    when: research about (\w+)
    say: '- \1 are automatic.'
  - system: Reporting Analyst
    seen: '- (\w+) are automatic'
    say: '# Report on \1'
calls: 2
result: ['# Report on lighthouses', '# Report on submarines']
agents: [Senior Data Researcher, Reporting Analyst]
files:
  latest_ai/__init__.py: ''
  latest_ai/config/agents.yaml: |
    researcher:
      role: >
        Senior Data Researcher
      goal: >
        Uncover developments in {topic}
      backstory: >
        You are known for finding what matters.
      llm: gpt-4o-mini
    reporting_analyst:
      role: >
        Reporting Analyst
      goal: >
        Create reports on {topic}
      backstory: >
        You are meticulous.
      llm: gpt-4o-mini
  latest_ai/config/tasks.yaml: |
    research_task:
      description: >
        Conduct research about {topic}.
      expected_output: >
        A list of points about {topic}
      agent: researcher
    reporting_task:
      description: >
        Expand each point into a section.
      expected_output: >
        A report in markdown
      agent: reporting_analyst
  latest_ai/crew.py: |
    from crewai import Agent, Crew, Process, Task
    from crewai.agents.agent_builder.base_agent import BaseAgent
    from crewai.project import CrewBase, after_kickoff, agent, before_kickoff, crew, task


    @CrewBase
    class LatestAi:
        agents: list[BaseAgent]
        tasks: list[Task]

        @before_kickoff
        def before(self, inputs):
            inputs["year"] = "2025"
            return inputs

        @after_kickoff
        def after(self, output):
            print(f"done: {output.raw}")
            return output

        @agent
        def researcher(self) -> Agent:
            return Agent(config=self.agents_config["researcher"])

        @agent
        def reporting_analyst(self) -> Agent:
            return Agent(config=self.agents_config["reporting_analyst"])

        @task
        def research_task(self) -> Task:
            return Task(config=self.tasks_config["research_task"])

        @task
        def reporting_task(self) -> Task:
            return Task(config=self.tasks_config["reporting_task"])

        @crew
        def crew(self) -> Crew:
            return Crew(agents=self.agents, tasks=self.tasks, process=Process.sequential)
"""

from latest_ai.crew import LatestAi


def run():
    LatestAi().crew().kickoff(inputs={"topic": "AI LLMs"})
