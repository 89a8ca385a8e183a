r"""A tool that calls OpenAI's SDK itself.
---
author: 'agent.invoke({"messages": [{"role": "user", "content": task["question"]}]})'
tasks:
  - question: Translate lighthouse
  - question: Translate submarine
model:
  - role: user
    when: ^Translate (\w+)$
    call: {name: translate, arguments: {word: \1}}
  - when: ^In French.. (\w+)
    say: le \1
  - role: tool
    when: (.*)
    say: It is \1.
calls: 3
result: [It is le lighthouse., It is le submarine.]
tools: [translate]
agents: [translator]
"""

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import OpenAI

client = OpenAI()


@tool
def translate(word: str) -> str:
    """Translate a word."""
    completion = client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": f"In French?? {word}"}]
    )
    return completion.choices[0].message.content


agent = create_agent(ChatOpenAI(model="gpt-4o-mini"), [translate], name="translator")
