r"""Map and reduce in a thread pool.
---
tasks:
  - topics: [apples, apricots, avocados]
  - topics: [beetroot, broccoli, beans]
model:
  - when: ^Describe (\w+)
    say: (\1 are good)
  - when: ^Combine
    seen: \((\w+) are good\)
    say: Eat \1 and more.
calls: 4
result: [Eat apples and more., Eat beetroot and more.]
"""

from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI

client = OpenAI()


def ask(text):
    completion = client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": text}])
    return completion.choices[0].message.content


def agent(task):
    with ThreadPoolExecutor(max_workers=4) as pool:
        parts = list(pool.map(lambda topic: ask(f"Describe {topic}."), task["topics"]))
    return ask("Combine: " + " ".join(parts))
