"""A program on the `openai` client that answers a sum."""

from openai import AsyncOpenAI

client = AsyncOpenAI(api_key="sk-your-key-here")


async def agent(question: str) -> str:
    """Return the model's reply."""
    completion = await client.chat.completions.create(
        model="gpt-4.1-mini",
        messages=[
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": question},
        ],
        temperature=0,
        max_tokens=32,
    )
    return completion.choices[0].message.content or ""
