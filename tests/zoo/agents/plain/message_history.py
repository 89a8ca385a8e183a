r"""A chatbot whose history is a list at module level, which every question and answer is added to.
---
tasks:
  - question: Tell me about lighthouses.
  - question: Tell me about submarines.
model:
  - when: about (\w+)
    say: There is much to say about \1.
  - when: Summarise
    seen: about (\w+)
    say: In short, \1 are remarkable.
calls: 2
result: [lighthouses are remarkable, submarines are remarkable]
state: "[message['role'] for message in history] + [turns]"
"""

from openai import OpenAI

client = OpenAI()
history = [{"role": "system", "content": "Answer briefly."}]
turns = 0


def chat(text):
    global turns
    turns += 1
    history.append({"role": "user", "content": text})
    reply = client.chat.completions.create(model="gpt-4o-mini", messages=history)
    history.append({"role": "assistant", "content": reply.choices[0].message.content})
    print(f"turn {turns} done")
    return history[-1]["content"]


def agent(task):
    chat(task["question"])
    return chat("Summarise what you said in one sentence.")
