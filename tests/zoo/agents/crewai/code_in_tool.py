r"""An agent that writes Python, and a tool that executes it in the process and in a child.
---
author: agent.kickoff(inputs=task)
tasks:
  - number: 6151
  - number: 7283
model:
  - role: user
    when: Triple (\d+)
    call: {name: run_python, arguments: {code: 'print(3 * \1)'}}
  - seen: output (\d+)
    say: It is \1.
calls: 2
result: [It is 18453., It is 21849.]
agents: [Programmer]
tools: [run_python]
"""

import contextlib
import io
import subprocess
import sys

from crewai import Agent, Crew, Task
from crewai.tools import tool


@tool("run_python")
def run_python(code: str) -> str:
    """Run Python code and return what it prints."""
    inside = io.StringIO()
    with contextlib.redirect_stdout(inside):
        exec(code, {})
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert child.stdout == inside.getvalue()
    return f"output {child.stdout}"


programmer = Agent(role="Programmer", goal="Calculate", backstory="You program.", tools=[run_python], llm="gpt-4o-mini")
triple = Task(description="Triple {number}.", expected_output="A number.", agent=programmer)
agent = Crew(agents=[programmer], tasks=[triple])
