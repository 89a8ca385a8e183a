r"""A script with argparse and a guarded main.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
author: run(task["question"], "gpt-4o-mini")
run: main_for
"""

import argparse

from openai import OpenAI


def run(question, model):
    client = OpenAI()
    completion = client.chat.completions.create(model=model, messages=[{"role": "user", "content": question}])
    return completion.choices[0].message.content


def main_for(task):
    return run(task["question"], "gpt-4o-mini")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("question")
    parser.add_argument("--model", default="gpt-4o-mini")
    arguments = parser.parse_args()
    print(run(arguments.question, arguments.model))


if __name__ == "__main__":
    main()
