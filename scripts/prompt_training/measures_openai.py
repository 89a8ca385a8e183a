"""A program on the `openai` client, without a framework: it answers a customer's question about a measure."""

from openai import AsyncOpenAI

client = AsyncOpenAI(api_key="sk-your-key-here")


async def agent(customer: str, question: str) -> str:
    """Reply to a customer."""
    completion = await client.chat.completions.create(
        model="gpt-4.1-mini",
        messages=[
            {"role": "system", "content": f"You reply to {customer}, a customer abroad who asks about a measure."},
            {"role": "user", "content": question},
        ],
        temperature=0,
    )
    return completion.choices[0].message.content or ""
