r"""Tools that fail: one whose error the model reads, one with an error function of its own, and several at once.
---
author: 'await Runner.run(agent, task["question"])'
tasks:
  - question: Fetch Lighthouse.
  - question: Fetch Submarine.
model:
  - role: user
    when: Fetch (\w+)
    calls:
      - {name: fetch, arguments: {name: \1}}
      - {name: read_file, arguments: {name: \1}}
      - {name: shout, arguments: {name: \1}}
  - role: tool
    seen: (?=.*no file (\w+))(?=.*error occurred)(?=.*!)
    say: I could not read \1.
calls: 2
result: [I could not read Lighthouse., I could not read Submarine.]
agents: [Reader]
tools: [fetch, read_file, shout]
"""

from agents import Agent, RunContextWrapper, Runner, function_tool


def explain(context: RunContextWrapper, error: Exception) -> str:
    return f"There is no file {error.args[0]}"


@function_tool
def fetch(name: str) -> str:
    """Fetch it."""
    raise TimeoutError(f"no answer from {name}")


@function_tool(failure_error_function=explain)
async def read_file(name: str) -> str:
    """Read a file.

    Args:
        name: The file's name.
    """
    raise FileNotFoundError(name)


@function_tool
async def shout(name: str) -> str:
    """Shout it."""
    return name.upper() + "!"


agent = Agent(name="Reader", instructions="You read.", tools=[fetch, read_file, shout])


async def main():
    await Runner.run(agent, "Fetch this.")
