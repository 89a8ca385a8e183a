r"""Two personas talk to one another for some turns.
---
tasks:
  - topic: lighthouses
  - topic: submarines
model:
  - system: optimist
    seen: about (\w+)
    say: I like \1.
  - system: sceptic
    seen: like (\w+)
    say: I doubt that \1 help.
calls: 4
result: [I doubt that lighthouses help., I doubt that submarines help.]
"""

from openai import OpenAI

client = OpenAI()


class Persona:
    def __init__(self, name):
        self.name = name
        self.messages = [{"role": "system", "content": f"You are the {name}."}]

    def reply(self, text):
        self.messages.append({"role": "user", "content": text})
        answer = client.chat.completions.create(model="gpt-4o-mini", messages=self.messages).choices[0].message.content
        self.messages.append({"role": "assistant", "content": answer})
        return answer


def agent(task):
    optimist, sceptic = Persona("optimist"), Persona("sceptic")
    text, transcript = f"Let us talk about {task['topic']}.", []
    for _ in range(2):
        for persona in (optimist, sceptic):
            text = persona.reply(text)
            transcript.append(f"{persona.name}: {text}")
    return "\n".join(transcript)
