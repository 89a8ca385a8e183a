r"""A flow with two starts, and_, a router, and or_; its state is a dict.
---
run: MailFlow
author: MailFlow().kickoff(inputs=task)
tasks:
  - mail: Lighthouse broken
  - mail: Submarine question
model:
  - when: 'Urgent\? (\w+) broken'
    say: urgent
  - when: 'Urgent\? (\w+) question'
    say: later
  - when: 'Language\? (\w+)'
    say: English
  - when: 'Answer in English at once. (\w+)'
    say: We come to \1 now.
  - when: 'Answer in English some day. (\w+)'
    say: We come to \1 later.
calls: 3
result: [logged We come to Lighthouse now., logged We come to Submarine later.]
"""

from crewai.flow.flow import Flow, and_, listen, or_, router, start
from openai import OpenAI

client = OpenAI()


def ask(text):
    completion = client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": text}])
    return completion.choices[0].message.content


class MailFlow(Flow):
    @start()
    def urgency(self):
        self.state["urgency"] = ask(f"Urgent? {self.state['mail']}")

    @start()
    def language(self):
        self.state["language"] = ask(f"Language? {self.state['mail']}")

    @listen(and_(urgency, language))
    def gathered(self):
        return self.state["urgency"]

    @router(gathered)
    def decide(self):
        return "now" if self.state["urgency"] == "urgent" else "later"

    @listen("now")
    def answer_now(self):
        return ask(f"Answer in {self.state['language']} at once. {self.state['mail']}")

    @listen("later")
    def answer_later(self):
        return ask(f"Answer in {self.state['language']} some day. {self.state['mail']}")

    @listen(or_(answer_now, answer_later))
    def log(self, answer):
        return f"logged {answer}"
