"""A program on the `openai` client, without a framework: its answer is JSON, the sum of two numbers."""

from openai import AsyncOpenAI
from pydantic import BaseModel

client = AsyncOpenAI(api_key="sk-your-key-here")


class Solution(BaseModel):
    """The result of a calculation."""

    result: int


async def agent(question: str) -> Solution | None:
    """Return the model's answer; None if it was cut."""
    completion = await client.chat.completions.parse(
        model="gpt-4.1-mini",
        messages=[
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": question},
        ],
        response_format=Solution,
        temperature=0,
    )
    return completion.choices[0].message.parsed
