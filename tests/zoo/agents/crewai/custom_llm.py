r"""An LLM class of one's own, derived from BaseLLM, that speaks to the endpoint by httpx.
---
author: agent.kickoff(inputs=task)
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - when: about (\w+)
    say: There is a lot about \1.
calls: 1
result: [There is a lot about lighthouses., There is a lot about submarines.]
agents: [Teller]
"""

import os

import httpx
from crewai import Agent, BaseLLM, Crew, Task


class HttpLLM(BaseLLM):
    def call(self, messages, tools=None, callbacks=None, available_functions=None, **kwargs):
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        response = httpx.post(
            f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
            headers={"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
            json={"model": self.model, "messages": messages},
            timeout=30,
        )
        response.raise_for_status()
        return response.json()["choices"][0]["message"]["content"]

    def supports_function_calling(self) -> bool:
        return False

    def get_context_window_size(self) -> int:
        return 8192


llm = HttpLLM(model="my-model", temperature=0.7)
teller = Agent(role="Teller", goal="Tell", backstory="You tell.", llm=llm)
tale = Task(description="Tell me about {topic}.", expected_output="A tale.", agent=teller)
agent = Crew(agents=[teller], tasks=[tale])
