r"""The model writes Python, which is executed for the answer.
---
tasks:
  - question: What is 17 times 23?
  - question: What is 41 times 12?
model:
  - when: is (\d+) times (\d+)
    say: |-
      ```python
      answer = \1 * \2
      print("computed", answer)
      ```
calls: 1
result: ["391", "492"]
"""

import re

from openai import OpenAI

client = OpenAI()


def agent(task):
    text = (
        client.chat.completions.create(
            model="gpt-4o-mini",
            messages=[
                {"role": "system", "content": "Write Python that leaves the result in `answer`."},
                {"role": "user", "content": task["question"]},
            ],
        )
        .choices[0]
        .message.content
    )
    names = {}
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1), names)
    return names["answer"]
