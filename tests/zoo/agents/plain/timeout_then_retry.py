r"""A call that times out, and a second one with another prompt.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - hang: true
    times: 1
  - when: Shortly, .*capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
"""

import openai

client = openai.OpenAI(max_retries=0)


def ask(text, timeout):
    return (
        client.chat.completions.create(
            model="gpt-4o-mini", messages=[{"role": "user", "content": text}], timeout=timeout
        )
        .choices[0]
        .message.content
    )


def agent(task):
    try:
        return ask(task["question"], 0.5)
    except openai.APITimeoutError:
        return ask("Shortly, " + task["question"], 30)
