r"""with_raw_response and with_options, with headers of the answer.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
"""

from openai import OpenAI

client = OpenAI()


def agent(task):
    response = client.with_options(timeout=20, max_retries=1).chat.completions.with_raw_response.create(
        model="gpt-4o-mini",
        messages=[{"role": "user", "content": task["question"]}],
        extra_headers={"X-Team": "zoology"},
    )
    completion = response.parse()
    return {
        "status": response.http_response.status_code,
        "type": response.headers["content-type"],
        "path": response.http_request.url.path,
        "text": completion.choices[0].message.content,
    }
