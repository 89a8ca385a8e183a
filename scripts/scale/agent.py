"""The agent of the scale campaign: two model calls, the second one with the first one's answer. Imports no Leyden."""

import httpx

MODEL = "gpt-4.1-mini"
client = httpx.AsyncClient(
    base_url="https://api.openai.com/v1",
    headers={"Authorization": "Bearer sk-none"},
    timeout=None,
    limits=httpx.Limits(max_connections=None),
)


async def agent(task: dict[str, int]) -> float:
    """Ask twice; the reward is whether both answers came whole."""
    messages = [{"role": "user", "content": f"Count to {task['number']}."}]
    said: list[str] = []
    for _ in range(2):
        answer = await client.post("/chat/completions", json={"model": MODEL, "messages": messages})
        answer.raise_for_status()
        text: str = answer.json()["choices"][0]["message"]["content"]
        said.append(text)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
    return float(said == ["one two three"] * 2)
