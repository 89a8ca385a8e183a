"""A client and a list of messages made once, and a function that adds to them."""

from openai import OpenAI

client = OpenAI(api_key="sk-any")
messages = [{"role": "system", "content": "Reply in one sentence."}]


def ask(task):
    messages.append({"role": "user", "content": task["question"]})
    completion = client.chat.completions.create(model="gpt-4o-mini", messages=messages)
    messages.append({"role": "assistant", "content": completion.choices[0].message.content})
    return completion.choices[0].message.content
