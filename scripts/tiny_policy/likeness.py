"""Traces of questions that were not run, in the likeness of traces that were: some frameworks take a second for each.

An agent that does nothing but pass on what it hears shows its model the same words around every question. That this
holds is proven for every trace that was run, or nothing is made. Knows no framework.
"""

import json
from collections.abc import Mapping
from typing import Any

from tiny_policy import wire
from tiny_policy.experts.calculator import Decision, answer_to
from tiny_policy.traces import Call, Trace

OPERATORS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


class Likeness:
    """What the traces of an agent have in common. Raises ValueError when it is not all but question and numbers."""

    def __init__(self, decisions: Mapping[str, Decision], traces: list[Trace]) -> None:
        run = list(zip(decisions.items(), traces, strict=True))
        self._examples = {_kind(decision): (question, trace) for (question, decision), trace in run}
        for (question, decision), trace in run:
            if [shown(call) for call in self.trace(question, decision)] != [shown(call) for call in trace]:
                raise ValueError(f"the agent shows its model more than its question and its numbers: {question!r}")

    def trace(self, question: str, decision: Decision) -> Trace:
        """Return the trace of a question that takes as many calls as one that was run."""
        like, example = self._examples[_kind(decision)]
        return tuple(self._call(call, like, question, decision) for call in example)

    def _call(self, call: Call, like: str, question: str, decision: Decision) -> Call:
        messages = tuple(_message(message, like, question, decision) for message in call.messages)
        answer = wire.message_from(answer_to(decision, messages, call.formatted))
        return Call(messages, call.tools, answer, call.formatted)


def _kind(decision: Decision) -> bool:
    return decision.guess is None


def _message(message: wire.Message, like: str, question: str, decision: Decision) -> wire.Message:
    if message["role"] == "user":
        return message | {"content": message["content"].replace(like, question)}
    if message["role"] == "tool":
        return message | {"content": _result(decision.expression)}
    if calls := message.get("tool_calls"):
        called: list[dict[str, Any]] = [
            call | {"function": call["function"] | {"arguments": {"expression": decision.expression}}} for call in calls
        ]
        return message | {"tool_calls": called}
    return message


def _result(expression: str) -> str:
    operator = next(sign for sign in OPERATORS if sign in expression)
    left, right = expression.split(operator)
    return str(OPERATORS[operator](int(left), int(right)))


def shown(call: Call) -> str:
    """Everything a template may show of a call: no ids."""
    messages = [{key: value for key, value in message.items() if key != "tool_call_id"} for message in call.messages]
    for message in messages:
        if "tool_calls" in message:
            message["tool_calls"] = [called["function"] for called in message["tool_calls"]]
    return json.dumps([messages, call.tools, call.answer], sort_keys=True)
