r"""A conversation kept in a SQLite database in memory that is opened at import.
---
tasks:
  - question: Tell me about lighthouses.
  - question: Tell me about submarines.
model:
  - when: about (\w+)
    say: There is much to say about \1.
calls: 1
result: [about lighthouses, about submarines]
state: database.execute("SELECT count(*) FROM messages").fetchone()[0]
"""

import sqlite3

from openai import OpenAI

client = OpenAI()
database = sqlite3.connect(":memory:", check_same_thread=False)
database.execute("CREATE TABLE messages (role TEXT, content TEXT)")


def remember(role, content):
    database.execute("INSERT INTO messages VALUES (?, ?)", (role, content))
    database.commit()


def agent(task):
    remember("user", task["question"])
    rows = database.execute("SELECT role, content FROM messages").fetchall()
    completion = client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": role, "content": content} for role, content in rows]
    )
    remember("assistant", completion.choices[0].message.content)
    return completion.choices[0].message.content
