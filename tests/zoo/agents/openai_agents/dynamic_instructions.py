r"""Instructions that a function makes from a context object, which tools read and write, too.
---
run: main
author: await main(task)
tasks:
  - name: Lighthouse
  - name: Submarine
model:
  - system: name is (\w+)
    role: user
    call: {name: fetch_user_age}
  - system: name is (\w+)
    role: tool
    when: (\d+) years
    say: \2 is \1.
calls: 2
result: [Lighthouse is 47., Submarine is 47.]
agents: [Assistant]
tools: [fetch_user_age]
"""

from dataclasses import dataclass, field

from agents import Agent, RunContextWrapper, Runner, function_tool


@dataclass
class UserInfo:
    name: str
    looked_up: list[str] = field(default_factory=list)


def instructions(context: RunContextWrapper[UserInfo], agent: Agent[UserInfo]) -> str:
    return f"The user's name is {context.context.name}. Help them with their questions."


@function_tool
async def fetch_user_age(wrapper: RunContextWrapper[UserInfo]) -> str:
    """Fetch the age of the user. Call this function to get user's age information."""
    wrapper.context.looked_up.append("age")
    return f"The user {wrapper.context.name} is 47 years old"


assistant = Agent[UserInfo](name="Assistant", instructions=instructions, tools=[fetch_user_age])


async def main(task):
    info = UserInfo(name=task["name"])
    result = await Runner.run(starting_agent=assistant, input="What is the age of the user?", context=info)
    return result.final_output, info
