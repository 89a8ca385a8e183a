r"""Umlauts, emoji and a long prompt.
---
tasks:
  - question: Grüße aus Zürich 🦓
  - question: Привет из Киева 🦒
model:
  - when: (Zürich|Киева) (.)
    say: "Danke für \\1 – \\2 ✓"
calls: 1
result: ["Danke für Zürich – 🦓 ✓", "Danke für Киева – 🦒 ✓"]
"""

from openai import OpenAI

client = OpenAI()
RULES = "\n".join(f"{number}. Sei höflich – und “genau”." for number in range(200))


def agent(task):
    stream = client.chat.completions.create(
        model="gpt-4o-mini",
        messages=[{"role": "system", "content": RULES}, {"role": "user", "content": task["question"]}],
        stream=True,
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)
