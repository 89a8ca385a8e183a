"""Traces: the model calls of an agent that an expert answered, in the form that a policy is trained on."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiny_policy import wire
from tiny_policy.recording import Plan, run_all


@dataclass(frozen=True)
class Call:
    """One model call of the agent: the request it made and the assistant message it received."""

    messages: tuple[wire.Message, ...]
    tools: tuple[dict[str, Any], ...]
    answer: wire.Message
    formatted: bool = False
    """Whether the agent required a format of the answer."""


Trace = tuple[Call, ...]
"""The model calls of one run of the agent, in order."""


def record(plans: Sequence[Plan], agent: str) -> list[Trace]:
    """Run the agent on every plan's task with the expert in its model's place; return a trace for each plan."""
    traces: list[list[Call]] = [[] for _ in plans]
    for call in asyncio.run(run_all(agent, plans)):
        answer = wire.message_from(call.text)
        traces[call.plan].append(Call(tuple(call.messages), tuple(call.tools), answer, call.formatted))
    return [tuple(trace) for trace in traces]
