"""Traces of crews that were not run, in the likeness of some that were: CrewAI takes a quarter of a second for each.

The crew's prompts around a question and around the output of the task before are always the same. This is checked on
every trace that was run, and ValueError is raised if it does not hold.
"""

import json
from collections.abc import Callable, Mapping, Sequence

from tiny_policy import wire
from tiny_policy.likeness import shown
from tiny_policy.recording import Plan
from tiny_policy.traces import Call, Trace

Tools = Mapping[str, Callable[..., str]]


class CrewLikeness:
    """The prompts of the crew's three roles, from a run; `answering` are the tools whose result is a task's output."""

    def __init__(self, plans: Sequence[Plan], traces: Sequence[Trace], tools: Tools, answering: Sequence[str]) -> None:
        self._tools, self._answering = tools, answering
        self._question: str = plans[0].task["question"]
        first = [call for call in traces[0] if all(message["role"] != "tool" for message in call.messages)]
        self._calls, self._outputs = first, self._outputs_of(traces[0])
        for plan, trace in zip(plans, traces, strict=True):
            if [shown(call) for call in self.trace(plan)] != [shown(call) for call in trace]:
                raise ValueError(f"the crew's prompts have more than questions and outputs: {plan.task['question']!r}")

    def trace(self, plan: Plan) -> Trace:
        """Return the trace of a question, with what the plan's expert writes."""
        found: list[Call] = []
        output = ""
        for like, given in zip(self._calls, ("", *self._outputs), strict=False):
            messages = [self._message(message, given, output, plan) for message in like.messages]
            output, calls = self._task(messages, like, plan)
            found += calls
        return tuple(found)

    def _task(self, messages: list[wire.Message], like: Call, plan: Plan) -> tuple[str, list[Call]]:
        """Return the output of one task and its calls."""
        calls: list[Call] = []
        while True:
            answer = wire.message_from(plan.write(messages, False))
            calls.append(Call(tuple(messages), like.tools, answer))
            requested = answer.get("tool_calls")
            if not requested:
                return answer["content"], calls
            function = requested[0]["function"]
            arguments = json.loads(function["arguments"])
            result = self._tools[function["name"]](**arguments)
            if function["name"] in self._answering:
                return result, calls
            called = {"id": "", "type": "function", "function": {"name": function["name"], "arguments": arguments}}
            messages = [
                *messages,
                {"role": "assistant", "tool_calls": [called], "content": ""},
                {"role": "tool", "name": function["name"], "content": result},
            ]

    def _message(self, message: wire.Message, given: str, output: str, plan: Plan) -> wire.Message:
        content = message["content"].replace(self._question, plan.task["question"])
        return message | {"content": content.replace(f"with:\n{given}", f"with:\n{output}") if given else content}

    def _outputs_of(self, trace: Trace) -> list[str]:
        """Return the outputs of all tasks but the last, as the prompts of the next tasks show them."""
        last = {call.messages[0]["content"]: call.answer for call in trace}
        outputs: list[str] = []
        for answer in list(last.values())[:-1]:
            requested = answer.get("tool_calls")
            if requested:
                function = requested[0]["function"]
                outputs.append(self._tools[function["name"]](**json.loads(function["arguments"])))
            else:
                outputs.append(answer["content"])
        return outputs
