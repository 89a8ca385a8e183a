r"""A requests session at module level with an adapter for retries and a hook.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - status: 503
    times: 1
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
state: statuses
"""

import os

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

statuses = []
session = requests.Session()
session.mount(
    "http://", HTTPAdapter(max_retries=Retry(3, backoff_factor=0.01, status_forcelist=[503], allowed_methods=None))
)
session.headers["Authorization"] = "Bearer " + os.environ["OPENAI_API_KEY"]
session.hooks["response"].append(lambda response, **_: statuses.append(response.status_code))


def agent(task):
    body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": task["question"]}]}
    response = session.post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json=body, timeout=30)
    response.raise_for_status()
    return response.json()["choices"][0]["message"]["content"]
