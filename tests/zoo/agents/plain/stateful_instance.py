r"""An object that keeps its conversation, whose bound method is the agent.
---
tasks:
  - question: Tell me about lighthouses.
  - question: Tell me about submarines.
model:
  - when: about (\w+)
    say: There is much to say about \1.
calls: 1
result: [about lighthouses, about submarines]
state: len(bot.messages)
"""

from openai import OpenAI


class ChatBot:
    def __init__(self):
        self.client = OpenAI()
        self.messages = [{"role": "system", "content": "You remember everything."}]

    def ask(self, task):
        self.messages.append({"role": "user", "content": task["question"]})
        answer = self.client.chat.completions.create(model="gpt-4o-mini", messages=self.messages)
        self.messages.append(answer.choices[0].message.to_dict())
        return self.messages[-1]["content"]


bot = ChatBot()
agent = bot.ask
