r"""A client whose httpx client has event hooks and a transport with retries.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
state: '[seen[0][0], seen[1][0], seen[1][1], len(seen)]'
"""

import httpx
from openai import OpenAI

seen = []


def on_request(request):
    seen.append((request.method, request.url.path))


def on_response(response):
    seen.append((response.request.method, response.status_code))


client = OpenAI(
    http_client=httpx.Client(
        transport=httpx.HTTPTransport(retries=2),
        event_hooks={"request": [on_request], "response": [on_response]},
        timeout=httpx.Timeout(30, connect=5),
    )
)


def agent(task):
    completion = client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": task["question"]}]
    )
    return completion.choices[0].message.content
