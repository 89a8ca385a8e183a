r"""The API called with http.client over TLS, at the provider's own host.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
hosts: ['api.openai.com:443']
"""

import http.client
import json
import os


def agent(task):
    connection = http.client.HTTPSConnection("api.openai.com", timeout=30)
    body = json.dumps({"model": "gpt-4o-mini", "messages": [{"role": "user", "content": task["question"]}]})
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", body, headers)
    response = connection.getresponse()
    data = json.loads(response.read())
    connection.close()
    return data["choices"][0]["message"]["content"]
