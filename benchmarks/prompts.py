"""What prompt edits add to a model call: the same calls with and without edits, in turns, in one run.

    python benchmarks/prompts.py --json prompts.json

The agent sends a system prompt of 1 kB or 50 kB with three variables, a user's message, and tools. It has 1, 10 or 50
components: `tools`, where each further one is the description of a tool of the request, or `alternatives`, where all
are system prompts of one place and the request has the one that is compared last.

`other_ms` are calls in which no text
matches, `unnamed_ms` calls of an agent that has no component, and `plain_ms` calls without edits. All are medians of
the CPU time of a call: of a gateway whose engine answers at once, and of its client, in one process. So they hardly
depend on what else the machine does. `policy_us` and `endpoint_us` are the replacement alone, for a policy and in the
body that an endpoint gets.
"""

import argparse
import asyncio
import json
import logging
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from leyden.core.data import semconv
from leyden.core.data.prompts.edits import PromptComponent, PromptEdits
from leyden.core.data.prompts.matching import CallerEdits
from leyden.core.engine.base import GenerateRequest
from leyden.core.gateway.chat.request import parse_chat
from leyden.core.gateway.prompts.request import edited_body, edited_request
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import ScriptedAnswer
from leyden.core.testing.scripted_gateway import ScriptedGateway, scripted_gateway

SHAPES = ("tools", "alternatives")
AGENT = "solver"
CODEC = ByteCodec()
CONTEXT = 1 << 18
PARAMETERS = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}


def template(number: int, size: int, kind: str = "own") -> str:
    """Return a text of `size` characters with three variables; texts with different numbers differ at their end."""
    filling = f"Follow the {kind} rules of this text with care. "
    third = (filling * (size // len(filling) + 1))[: size // 3]
    return f"{third}\nToday is {{v1}}.\n{third}\nThe schema is {{v2}}.\n{third}\nFor {{v3}}, {kind} version {number}."


def components(shape: str, count: int, size: int) -> tuple[PromptComponent, ...]:
    """Return the agent's components with new texts of the same size."""

    def system(number: int) -> PromptComponent:
        own, new = template(number, size), template(number, size, "new")
        return PromptComponent(name=f"s{number}", agent=AGENT, role="system", text=own, new_text=new)

    def tool(number: int) -> PromptComponent:
        own, new = f"Tool {number} of the agent.", f"New tool {number}."
        return PromptComponent(name=f"t{number}", agent=AGENT, role="tool", tool=f"t{number}", text=own, new_text=new)

    if shape == "alternatives":
        return tuple(system(number) for number in range(count))
    return (system(0), *(tool(number) for number in range(1, count)))


def request(shape: str, count: int, size: int) -> bytes:
    """Return the body of the agent's call."""
    number = count - 1 if shape == "alternatives" else 0
    text = template(number, size).format(v1="2026-11-26", v2="a table of rows " * 20, v3="us")
    functions = [
        {"name": f"t{n}", "description": f"Tool {n} of the agent.", "parameters": PARAMETERS} for n in range(1, count)
    ]
    tools = [{"type": "function", "function": function} for function in functions]
    messages = [{"role": "system", "content": text}, {"role": "user", "content": "How many rows are there?"}]
    more = {"tools": tools} if tools and shape == "tools" else {}
    return json.dumps({"model": "m", "messages": messages, "max_tokens": 8, **more}).encode()


def micros(work: Callable[[], Any], rounds: int) -> float:
    """Return the median microseconds of CPU time of some work."""
    taken: list[float] = []
    for _ in range(rounds):
        began = time.thread_time()
        work()
        taken.append(time.thread_time() - began)
    return statistics.median(taken) * 1e6


async def measure(gateway: ScriptedGateway, shape: str, count: int, size: int, rounds: int) -> dict[str, Any]:
    """Measure calls with and without edits, in turns."""
    found, body = components(shape, count, size), request(shape, count, size)
    other = body.replace(b"Follow the own rules", b"Follow our own rules")
    attempts: dict[str, Any] = {}
    for name, edits in (("plain", ()), ("edited", found)):
        await gateway.store.add_resources({"prompts": PromptEdits(components=edits)} if edits else {})
        attempts[name] = (await gateway.open_attempt()).base_url
    kinds = {
        "plain": (attempts["plain"], body, AGENT),
        "edited": (attempts["edited"], body, AGENT),
        "other": (attempts["edited"], other, AGENT),
        "unnamed": (attempts["edited"], body, "another"),
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    async with aiohttp.ClientSession() as client:
        for n in range(rounds + 3):
            for kind, (url, sent, agent) in kinds.items():
                headers = {"content-type": "application/json", semconv.HEADER_AGENT: agent}
                began = time.process_time()
                async with client.post(f"{url}/chat/completions", data=sent, headers=headers) as response:
                    await response.read()
                    assert response.status == 200, await response.text()
                seconds[kind] += [time.process_time() - began] if n >= 3 else []
    caller, parsed = CallerEdits(found), parse_chat(body)
    assert len(edited_body(caller, "chat", body)[1]) == (count if shape == "tools" else 1)
    medians = {f"{kind}_ms": statistics.median(taken) * 1e3 for kind, taken in seconds.items()}
    return {
        "shape": shape, "components": count, "prompt_kb": size / 1000, **medians,
        "ratio": medians["edited_ms"] / medians["plain_ms"],
        "unnamed_ratio": medians["unnamed_ms"] / medians["plain_ms"],
        "policy_us": micros(lambda: edited_request(caller, parsed), rounds),
        "endpoint_us": micros(lambda: edited_body(caller, "chat", body), rounds),
    }  # fmt: skip


async def compare(rounds: int) -> list[dict[str, Any]]:
    """Measure every shape, number of components and size."""

    def answer(_: GenerateRequest) -> ScriptedAnswer:
        return ScriptedAnswer(ids=CODEC.answer("3"))

    async with scripted_gateway(answer, context_length=CONTEXT) as gateway:
        return [
            await measure(gateway, shape, count, size, rounds)
            for size in (1_000, 50_000)
            for shape in SHAPES
            for count in (1, 10, 50)
        ]


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="calls of each kind")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    logging.getLogger("leyden.prompts").setLevel(logging.ERROR)  # it would report the texts that match no component
    rows = asyncio.run(compare(arguments.rounds))
    print("".join(f"{title:>15}" for title in rows[0]))
    for row in rows:
        print("".join(f"{value:>15,.3f}" if isinstance(value, float) else f"{value!s:>15}" for value in row.values()))
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
