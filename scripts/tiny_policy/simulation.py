"""Traces made without running the agent: of one that shows its model the question and the results of its one tool.

Some frameworks take long for each run. That a simulated trace equals the recorded one is checked for every plan that
was run, or nothing is made.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from tiny_policy import wire
from tiny_policy.likeness import shown
from tiny_policy.recording import Plan
from tiny_policy.traces import Call, Trace

Tool = Callable[[dict[str, Any]], str]
"""From the arguments of a call to its result."""


def simulate(plans: Sequence[Plan], recorded: Sequence[Trace], tool: Tool) -> list[Trace]:
    """Return a trace for each plan; `recorded` has those of the first plans. Raises ValueError where one differs."""
    first = recorded[0][0]
    traces = [_trace(plan, first, tool) for plan in plans]
    for plan, trace, expected in zip(plans, traces, recorded, strict=False):
        if [shown(call) for call in trace] != [shown(call) for call in expected]:
            raise ValueError(f"the agent shows its model more than question and results: {plan.task['question']!r}")
    return traces


def _trace(plan: Plan, first: Call, tool: Tool) -> Trace:
    question = plan.task["question"]
    messages = [message | {"content": question} if message["role"] == "user" else message for message in first.messages]
    calls: list[Call] = []
    while True:
        answer = wire.message_from(plan.write(messages, False))
        calls.append(Call(tuple(messages), first.tools, answer))
        if "tool_calls" not in answer:
            return tuple(calls)
        call = answer["tool_calls"][0]
        arguments = json.loads(call["function"]["arguments"])
        called = call | {"function": call["function"] | {"arguments": arguments}}
        result = {"content": tool(arguments), "role": "tool", "tool_call_id": call["id"]}
        messages = [*messages, {"role": "assistant", "tool_calls": [called], "content": ""}, result]
