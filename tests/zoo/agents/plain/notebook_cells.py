r"""A notebook exported as a module, with cells and names that are assigned again.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
run: answer
author: answer(task)
"""

# %% [markdown]
# # A small assistant

# %%
from openai import OpenAI

client = OpenAI()
model = "gpt-4o"

# %%
prompt = "You are helpful."
messages = [{"role": "system", "content": prompt}]

# %%
model = "gpt-4o-mini"


def ask(messages, text):
    return (
        client.chat.completions.create(model=model, messages=[*messages, {"role": "user", "content": text}])
        .choices[0]
        .message.content
    )


# %%
def answer(row):
    return ask(messages, row["question"])
