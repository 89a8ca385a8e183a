r"""AzureOpenAI with an endpoint and a deployment.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
hosts: ['example.openai.azure.com:443']
environment: {AZURE_OPENAI_API_KEY: not-a-key, OPENAI_API_VERSION: '2024-10-21', OPENAI_BASE_URL: ''}
"""

import os

from openai import AzureOpenAI

os.environ.pop("OPENAI_BASE_URL", None)
client = AzureOpenAI(azure_endpoint="https://example.openai.azure.com", azure_deployment="chat-deployment")


def agent(task):
    completion = client.chat.completions.create(
        model="chat-deployment", messages=[{"role": "user", "content": task["question"]}]
    )
    return completion.choices[0].message.content
