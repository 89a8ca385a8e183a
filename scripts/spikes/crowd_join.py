"""A crowd of rollouts at once against the real gateway, joined call by call: engine log, gateway span, who spoke.

A spike asks its framework's hooks at the wire, the moment before a request leaves, and every answer travels with the
call. What is true stands in the prompt, where each agent and each rollout has its name. Knows no framework.
"""

import argparse
import asyncio
import importlib
import inspect
import itertools
import json
import re
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from leyden.core.data import semconv
from leyden.core.errors import EngineError
from leyden.core.testing.gateway_bench import GatewayBench, Turn, only_this_machine, turns
from leyden.core.tracing.context import Caller, OpenAttempt, current_caller, open_attempt, set_caller

PROVIDER = "https://api.openai.com/v1"
API_KEY = "sk-nobody"
ROLLOUT = re.compile(r"rollout-(\d+)")
ROLE = re.compile(r"You are (\w+)\.")
MARK = re.compile(r"\[rollout-(\d+) (\w+) #(\d+)\]")

Hooks: TypeAlias = dict[str, Callable[[], str | None]]
"""By name: what a hook of the framework's says at the wire, in the context of the call."""
Later: TypeAlias = Mapping[str, Callable[[str], str | None]]
"""By name of a hook: who an answer of its turns out to be, once the framework's own record is whole."""
Mode: TypeAlias = Callable[[int], Any]
"""Runs one rollout, at once or as an awaitable; what it returns may hold marks to check."""
Check: TypeAlias = Callable[[Any], Counter[str]]
"""Counts what the framework itself says of who wrote which mark."""


class Model:
    """Answers as the conversation asks it to, each time with a mark that no other answer has."""

    def __init__(self) -> None:
        self._number = itertools.count(1)
        self._stumbled = set[tuple[str, str]]()

    def __call__(self, conversation: list[Turn]) -> str | Exception:
        """Call the tool at hand once; then answer with the mark."""
        rollout, role = truth(conversation)
        mark = f"[rollout-{rollout} {role} #{next(self._number)}]"
        asked = " ".join(turn.text for turn in conversation if turn.role != "system")
        if role == "selector":
            spoke = [found[2] for found in MARK.finditer(asked)] or ["writer"]
            return {"writer": "solver", "solver": "critic", "critic": "writer"}[spoke[-1]]
        if "model breaks" in asked and role != "solver":
            return EngineError("the engine is broken")
        if "model stumbles" in asked and (rollout, role) not in self._stumbled:
            self._stumbled.add((rollout, role))
            return EngineError("the engine stumbles")
        if conversation[-1].role != "tool" and (call := _tool_call(conversation, mark, asked)):
            return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
        return f"{mark} done"


def _tool_call(conversation: list[Turn], mark: str, asked: str) -> dict[str, Any] | None:
    tools = conversation[0].text if conversation[0].text.startswith("[{") else ""
    if '"double"' in tools:
        return {"name": "double", "arguments": {"number": 13 if "tool breaks" in asked else 7, "note": mark}}
    if '"delegate_work_to_coworker"' in tools:
        task = f"say something for {mark.split()[0][1:]}"
        return {"name": "delegate_work_to_coworker", "arguments": {"task": task, "context": mark, "coworker": "helper"}}
    return None


def truth(conversation: list[Turn]) -> tuple[str, str]:
    """(rollout, role) of a prompt; several rollouts in one prompt are a leak, and no rollout's."""
    rollouts = {found for turn in conversation for found in ROLLOUT.findall(turn.text)}
    system = " ".join(turn.text for turn in conversation if turn.role == "system")
    role = ROLE.search(system)
    return (rollouts.pop() if len(rollouts) == 1 else "several"), (role[1] if role else "selector")


@contextmanager
def asked_at_the_wire(hooks: Hooks) -> Generator[None]:
    """Let every call carry what `hooks` say of it, as the node of its gateway span."""

    def said() -> Caller:
        known = current_caller() or Caller()
        answers = {name: hook() for name, hook in hooks.items()}
        thread = threading.current_thread().name
        node = json.dumps({**answers, "caller": known.agent, "thread": re.sub(r"[\d_-]+", "*", thread)})
        return Caller(agent=known.agent, node=node, span_id=known.span_id, trace_id=known.trace_id)

    def send(client: Any, request: Any, **options: Any) -> Any:
        if not request.url.path.endswith("/chat/completions"):
            return sync_send(client, request, **options)
        before = current_caller()
        set_caller(said())
        try:
            return sync_send(client, request, **options)
        finally:
            set_caller(before)

    async def send_async(client: Any, request: Any, **options: Any) -> Any:
        if not request.url.path.endswith("/chat/completions"):
            return await async_send(client, request, **options)
        before = current_caller()
        set_caller(said())
        try:
            return await async_send(client, request, **options)
        finally:
            set_caller(before)

    http: Any = importlib.import_module("httpx")
    sync_send, async_send = http.Client.send, http.AsyncClient.send
    http.Client.send, http.AsyncClient.send = send, send_async
    try:
        yield
    finally:
        http.Client.send, http.AsyncClient.send = sync_send, async_send


async def run_crowd(
    mode: Mode, rollouts: int, hooks: Hooks, check: Check, *, threads: bool, later: Later | None = None
) -> dict[str, Any]:
    """Run `mode` for so many rollouts at once, in tasks or each in a thread of its own, and return what joined."""
    bench = GatewayBench(Model())
    bench.start()
    attempts = [await bench.attempt(number) for number in range(rollouts)]

    async def work(number: int) -> Any:
        with open_attempt(attempts[number]):
            return await mode(number)

    def in_thread(number: int) -> Any:
        with open_attempt(attempts[number]):
            result = mode(number)
            return asyncio.run(result) if inspect.iscoroutine(result) else result

    try:
        async with bench.recording() as recorder:
            with asked_at_the_wire(hooks), only_this_machine() as looked_up:
                if threads:
                    results = await _each_in_a_thread(in_thread, rollouts)
                else:
                    results = await asyncio.gather(
                        *(work(number) for number in range(rollouts)), return_exceptions=True
                    )
            await recorder.flush()
            late = [note for attempt in attempts for note in attempt.notes]
            if late:
                await bench.store.add_many_spans(late)
            found = await join(bench, attempts, later or {})
    finally:
        bench.stop()
    failures = Counter(f"{type(r).__name__}: {str(r)[:80]}" for r in results if isinstance(r, BaseException))
    marks = sum((check(r) for r in results if not isinstance(r, BaseException)), Counter[str]())
    return {
        **found,
        "rollouts": rollouts,
        "failures": dict(failures),
        "framework's own record": dict(marks),
        "hosts looked up": dict(Counter(looked_up)),
    }


async def _each_in_a_thread(work: Callable[[int], Any], rollouts: int) -> list[Any]:
    results: list[Any] = [None] * rollouts

    def run(number: int) -> None:
        try:
            results[number] = work(number)
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(rollouts)]
    for thread in threads:
        thread.start()
    await asyncio.to_thread(lambda: [thread.join() for thread in threads])
    return results


async def join(bench: GatewayBench, attempts: list[OpenAttempt], later: Later) -> dict[str, Any]:
    """Hold every call of the engine's log against the gateway's spans, and each hook's word against the prompt."""
    log = {record.request_id: truth(turns(record.prompt_ids)) for record in bench.log}
    seen, hooks, wrong, threads = Counter[str](), dict[str, Counter[str]](), Counter[str](), Counter[str]()
    parents = Counter[bool]()
    for number, attempt in enumerate(attempts):
        spans = await bench.spans(attempt)
        ids = {span.span_id: span for span in spans}
        for span in (span for span in spans if semconv.CALL_ID in span.attributes):
            call_id = str(span.attributes[semconv.CALL_ID])
            if call_id not in log:
                wrong["refused"] += 1
                continue
            seen[call_id] += 1
            rollout, role = log[call_id]
            wrong["rollout"] += rollout != str(number)
            said: dict[str, str | None] = json.loads(str(span.attributes.get(semconv.NODE, "{}")))
            threads[str(said.pop("thread", None))] += 1
            for name, answer in said.items():
                who = answer if answer is None or name not in later else later[name](answer)
                hooks.setdefault(name, Counter())[_verdict(role, who)] += 1
            parents[span.parent_id in ids] += 1
    return {
        "engine calls": len(bench.log),
        "spans": sum(seen.values()),
        "missing": len(set(log) - set(seen)),
        "doubled": sum(count - 1 for count in seen.values()),
        "wrong rollout": wrong["rollout"],
        "refused before the engine": wrong["refused"],
        "hooks": {name: dict(counts) for name, counts in hooks.items()},
        "under a recorded span": parents[True],
        "most calls in flight": bench.gateway.engine.peak,
        "threads": dict(threads),
    }


def _verdict(role: str, answer: str | None) -> str:
    if answer is None:
        return "silent"
    return "right" if role.lower() == answer.lower() else f"says {answer} for {role}"


def main(description: str, run: Callable[[int], Awaitable[Mapping[str, Any]]]) -> None:
    """Run a spike from the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rollouts", type=int, default=64, help="how many at once")
    parser.add_argument("--json", type=Path, help="where to write what was found")
    given = parser.parse_args()
    found = asyncio.run(run_all(run, given.rollouts))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


async def run_all(run: Callable[[int], Awaitable[Mapping[str, Any]]], rollouts: int) -> dict[str, Any]:
    """Run a spike and print each of its modes."""
    found = dict(await run(rollouts))
    for mode, result in found.items():
        print(f"{mode}: {json.dumps(result)}")
    return found
