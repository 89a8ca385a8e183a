r"""Three choices of one call, and a vote.
---
tasks:
  - question: How many letters has elephant?
  - question: How many letters has ant?
model:
  - when: has elephant
    say: Answer 8
  - when: has ant
    say: Answer 3
calls: 3
result: [Answer 8, Answer 3]
not_trained: {}
"""

from collections import Counter

from openai import OpenAI

client = OpenAI()


def agent(task):
    completion = client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": task["question"]}], n=3, temperature=1.0
    )
    return Counter(choice.message.content for choice in completion.choices).most_common(1)[0][0]
