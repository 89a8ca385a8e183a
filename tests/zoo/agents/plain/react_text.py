r"""ReAct in plain text: thoughts, actions and observations, parsed with a pattern.
---
tasks:
  - question: How many letters has elephant?
  - question: How many letters has tortoise?
model:
  - role: user
    when: ^How many letters has (\w+)
    say: |-
      Thought: I should count.
      Action: count(\1)
  - when: "Observation: (\\d+)"
    say: |-
      Thought: I know it now.
      Final Answer: \1 letters
calls: 2
result: 8 letters
"""

import re

from openai import OpenAI

client = OpenAI()
TOOLS = {"count": len, "upper": str.upper}
PROMPT = "Answer with Thought, then Action: tool(argument), or Final Answer: text. Tools: count, upper."


def agent(task):
    messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": task["question"]}]
    for _ in range(5):
        text = (
            client.chat.completions.create(model="gpt-4o-mini", messages=messages, stop=["Observation:"], temperature=0)
            .choices[0]
            .message.content
        )
        messages.append({"role": "assistant", "content": text})
        if "Final Answer:" in text:
            return text.split("Final Answer:")[1].strip()
        name, argument = re.search(r"Action: (\w+)\((.*?)\)", text).groups()
        messages.append({"role": "user", "content": f"Observation: {TOOLS[name](argument)}"})
    raise RuntimeError("no answer after five turns")
