"""Plain clients of each API see the same whether their prompts are replaced or not."""

import asyncio
import json
from typing import Any

import anthropic
import openai
import pytest

from leyden.core.testing.adapter_contract import API_KEY, ReplacedPromptsContract
from leyden.core.testing.adapter_contract.shared import PROVIDER

pytestmark = pytest.mark.integration

OWN_HEADERS = ("content-type", "x-should-retry", "cache-control")
SYSTEM = "You solve {sums} with the tool."
PARAMETERS = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
FUNCTION = {"name": "double", "description": "Double a number.", "parameters": PARAMETERS}


def double(number: int) -> str:
    if number == 13:
        raise ValueError("13 is unlucky")
    return str(2 * number)


def asked(question: str) -> str:
    return f"Please answer this question: {question}\nAnswer with one number."


def client() -> Any:
    return openai.OpenAI(base_url=PROVIDER, api_key=API_KEY, max_retries=0)


def messages_client() -> Any:
    return anthropic.Anthropic(base_url="https://api.anthropic.com", api_key=API_KEY, max_retries=0)


class InThread(ReplacedPromptsContract):
    """An agent that is called synchronously."""

    roles = frozenset({"system", "user", "tool"})

    async def observe(self, question: str, seen: list[Any], *, stream: bool) -> None:
        await asyncio.to_thread(self.work, question, seen, stream)

    def work(self, question: str, seen: list[Any], stream: bool) -> None:
        raise NotImplementedError


class TestChat(InThread):
    def work(self, question: str, seen: list[Any], stream: bool) -> None:
        messages: list[Any] = [{"role": "system", "content": SYSTEM}]
        messages += [{"role": "user", "content": asked(question)}]
        tools: Any = [{"type": "function", "function": FUNCTION}]
        seen.append(messages)
        with client() as agent:
            for _ in range(2):
                if stream:
                    with agent.chat.completions.stream(model="gpt", messages=messages, tools=tools) as events:
                        seen += events
                        message = events.get_final_completion().choices[0].message
                else:
                    raw = agent.chat.completions.with_raw_response.create(
                        model="gpt", messages=messages, tools=tools, logprobs=True
                    )
                    seen += [raw.status_code, *((name, raw.headers.get(name)) for name in OWN_HEADERS), raw.parse()]
                    message = raw.parse().choices[0].message
                messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
                for call in message.tool_calls or ():
                    content = double(**json.loads(call.function.arguments))
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


class TestResponses(InThread):
    """A conversation that continues with `previous_response_id`, and whose stored responses are read."""

    def work(self, question: str, seen: list[Any], stream: bool) -> None:
        tools: Any = [{"type": "function", "strict": False, **FUNCTION}]
        given: Any = [
            {"role": "developer", "content": [{"type": "input_text", "text": "Be brief, always."}]},
            {"role": "user", "content": asked(question)},
        ]
        previous: Any = None
        with client() as agent:
            for _ in range(3):
                how: Any = {"instructions": SYSTEM, "input": given, "tools": tools, "previous_response_id": previous}
                if stream:
                    with agent.responses.stream(model="gpt", **how) as events:
                        seen += events
                        reply: Any = events.get_final_response()
                else:
                    reply = agent.responses.create(model="gpt", **how)
                seen += [reply, agent.responses.retrieve(reply.id), [*agent.responses.input_items.list(reply.id)]]
                previous, given = reply.id, [{"role": "user", "content": f"{asked(question)} Again."}]
                for item in reply.output:
                    if item.type == "function_call":
                        output = double(**json.loads(item.arguments))
                        given = [{"type": "function_call_output", "call_id": item.call_id, "output": output}]
            seen.append(agent.responses.delete(previous))


class TestMessages(InThread):
    def work(self, question: str, seen: list[Any], stream: bool) -> None:
        tools: Any = [{"name": "double", "description": "Double a number.", "input_schema": PARAMETERS}]
        system: Any = [{"type": "text", "text": text} for text in (SYSTEM, "Be brief.")]
        messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": asked(question)}]}]
        how: Any = {"model": "claude", "max_tokens": 200, "system": system, "messages": messages, "tools": tools}
        seen.append(how)
        with messages_client() as agent:
            for _ in range(2):
                if stream:
                    with agent.messages.stream(**how) as events:
                        seen += events
                        reply: Any = events.get_final_message()
                else:
                    reply = agent.messages.create(**how)
                seen.append(reply)
                messages.append({"role": "assistant", "content": reply.content})
                for block in reply.content:
                    if block.type == "tool_use":
                        result = {"type": "tool_result", "tool_use_id": block.id, "content": double(**block.input)}
                        messages.append({"role": "user", "content": [result]})


class TestCompletions(InThread):
    roles = frozenset({"prompt"})

    def work(self, question: str, seen: list[Any], stream: bool) -> None:
        with client() as agent:
            prompts = [asked(question), f"Q: say what I say: {question}\nA:"]
            if stream:
                seen += agent.completions.create(model="gpt", prompt=prompts[0], stream=True)
            else:
                seen.append(agent.completions.create(model="gpt", prompt=prompts))
