"""Serve a filled store of Agent Lightning 0.3, or record its real server's answers for the tests of `leyden import`.

Run it with a Python that has Agent Lightning, which Leyden's own environment does not have:

    python -m venv agl && agl/bin/pip install 'agentlightning==0.3.*'
    agl/bin/python scripts/record_agent_lightning.py record packages/core/tests/trainer/imports/agent_lightning_0_3.json
    agl/bin/python scripts/record_agent_lightning.py serve 4747

The store has rollouts in every state, retries, resources of every kind, and spans as its tracer, its emitters and
AgentOps write them. The spans of the rollout `ran` come from an agent that its own runner ran.
"""

import asyncio
import json
import sys
import urllib.parse
import urllib.request
from importlib import import_module
from pathlib import Path
from typing import Any, cast

PREFIX = "/v1/agl"


def agent_of(agl: Any) -> Any:
    """Return an agent that emits all that the emitters can."""

    def run(task: dict[str, Any], prompt_template: Any) -> None:
        agl.emit_message("looked at " + prompt_template.format(question=task["question"]))
        agl.emit_object({"rows": [1, 2]})
        agl.emit_annotation({"length": 3, "tags": ["a", "b"]})
        agl.emit_reward({"correct": 0.5, "short": 1.0}, primary_key="correct")

    return agl.rollout(run)


def call(agl: Any, rollout: Any, number: int, **changes: Any) -> Any:
    """Return a span of a model call, with the attributes that AgentOps and the proxy write."""
    attributes = {
        "gen_ai.request.model": "gpt-4.1-mini",
        "gen_ai.response.id": f"chatcmpl-{number}",
        "gen_ai.prompt.0.role": "system",
        "gen_ai.prompt.0.content": "Use the calculator.",
        "gen_ai.prompt.1.role": "user",
        "gen_ai.prompt.1.content": "What is 2 + 3?",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": "It is 5.",
        "gen_ai.completion.0.finish_reason": "stop",
        "prompt_token_ids": [1, 2, 3],
        "response_token_ids": [4, 5],
        **changes.pop("attributes", {}),
    }
    if changes.pop("is_reward", False):
        attributes = {"agentops.entity.output": json.dumps({"type": "reward", "value": 0.25})}
    given: dict[str, Any] = {
        "rollout_id": rollout.rollout_id,
        "attempt_id": rollout.attempt.attempt_id,
        "sequence_id": number,
        "trace_id": f"{number:032x}",
        "span_id": f"{number:016x}",
        "parent_id": None,
        "name": "openai.chat.completion",
        "status": {"status_code": "OK"},
        "attributes": attributes,
        "events": [],
        "links": [],
        "start_time": 1_760_000_000.0 + number,
        "end_time": 1_760_000_000.5 + number,
        "context": None,
        "parent": None,
        "resource": {"attributes": {"service.name": "agent"}, "schema_url": ""},
        **changes,
    }
    return agl.Span.model_validate(given)


TOOL_CALL = {
    "gen_ai.completion.0.content": "",
    "gen_ai.completion.0.tool_calls.0.id": "call_1",
    "gen_ai.completion.0.tool_calls.0.name": "calculate",
    "gen_ai.completion.0.tool_calls.0.arguments": '{"text": "2 + 3"}',
    "gen_ai.request.functions.0.name": "calculate",
    "gen_ai.request.functions.0.description": "Calculate.",
    "gen_ai.request.functions.0.parameters": '{"type": "object", "properties": {"text": {"type": "string"}}}',
    "gen_ai.completion.0.finish_reason": "tool_calls",
}


async def fill(agl: Any, store: Any) -> None:
    """Fill the store with what its own classes write."""
    llm = agl.LLM(
        endpoint="http://127.0.0.1:9/v1", model="m", api_key="key-of-an-llm", sampling_parameters={"top_p": 0.9}
    )
    proxy = agl.ProxyLLM(endpoint="http://127.0.0.1:9/v1", model="m")
    asked = agl.PromptTemplate(template="Please answer: {question}", engine="f-string")
    poml = agl.PromptTemplate(template="<poml>x</poml>", engine="poml")
    await store.update_resources("first", {"main_llm": llm, "proxy": proxy, "poml": poml})
    await store.update_resources("first", {"main_llm": llm, "proxy": proxy, "poml": poml})
    await store.add_resources({"prompt_template": asked})

    await store.enqueue_rollout({"question": "ran"}, mode="train", metadata={"made": "by the runner"})
    runner = agl.LitAgentRunner(tracer=agl.OtelTracer(), max_rollouts=1, poll_interval=0.1)
    with runner.run_context(agent=agent_of(agl), store=store):
        await runner.iter()

    called = await store.start_rollout({"question": "called"}, mode="train", worker_id="w1")
    await store.add_span(call(agl, called, 1, attributes=TOOL_CALL))
    answered = {
        "gen_ai.prompt.2.role": "assistant",
        "gen_ai.prompt.2.content": "",
        "gen_ai.prompt.2.tool_calls.0.id": "call_1",
        "gen_ai.prompt.2.tool_calls.0.name": "calculate",
        "gen_ai.prompt.2.tool_calls.0.arguments": '{"text": "2 + 3"}',
        "gen_ai.prompt.3.role": "tool",
        "gen_ai.prompt.3.content": "5",
        "gen_ai.prompt.3.tool_call_id": "call_1",
    }
    await store.add_span(call(agl, called, 2, attributes=answered))
    again = {
        "name": "litellm_request",
        "span_id": "00000000000000aa",
        "attributes": {"gen_ai.response.id": "chatcmpl-2"},
    }
    await store.add_span(call(agl, called, 3, **again))
    odd: dict[str, Any] = {
        "span_id": "not-hexadecimal",
        "attributes": {"leyden.prompt.token_ids": [7, 8], "leyden.policy.version": 3},
        "events": [{"name": "seen", "attributes": {"n": 1}, "timestamp": 1_760_000_003.0}],
        "links": [
            {"context": {"trace_id": f"{1:032x}", "span_id": f"{1:016x}", "is_remote": False, "trace_state": {}}}
        ],
        "context": {"trace_id": f"{4:032x}", "span_id": f"{4:016x}", "is_remote": True, "trace_state": {"a": "b"}},
        "resource": {"attributes": {}, "schema_url": "https://opentelemetry.io/schemas/1.0"},
    }
    await store.add_span(call(agl, called, 4, **odd))
    await store.add_span(call(agl, called, 5, name="reward.task", is_reward=True))
    await store.update_attempt(called.rollout_id, called.attempt.attempt_id, status="succeeded")

    retry = agl.RolloutConfig(
        max_attempts=2, retry_condition=["failed", "timeout", "unresponsive"], timeout_seconds=60.0
    )
    await store.enqueue_rollout({"question": "retried"}, mode="train", config=retry)
    first = await store.dequeue_rollout(worker_id="w1")
    await store.add_span(call(agl, first, 1))
    await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="unresponsive")
    second = await store.dequeue_rollout(worker_id="w2")
    await store.add_span(call(agl, second, 2))
    await store.update_attempt(second.rollout_id, second.attempt.attempt_id, status="failed")

    late = await store.start_rollout({"question": "timed out"}, mode="val", worker_id="w3")
    await store.update_attempt(late.rollout_id, late.attempt.attempt_id, status="timeout")
    gone = await store.start_rollout({"question": "cancelled"}, worker_id="w3")
    await store.update_rollout(gone.rollout_id, status="cancelled")
    waits = await store.start_rollout({"question": "runs"}, worker_id="w4", resources_id="first")
    await store.add_span(call(agl, waits, 1))
    await store.enqueue_rollout({"question": "again"}, config=retry)
    again = await store.dequeue_rollout(worker_id="w4")
    await store.update_attempt(again.rollout_id, again.attempt.attempt_id, status="failed")
    await store.enqueue_rollout({"question": "waits"}, mode="test", config=agl.RolloutConfig(timeout_seconds=0.0))


def items(url: str, path: str, **query: str) -> list[dict[str, Any]]:
    """Return all items that the server sends for a path."""
    address = f"{url}{PREFIX}/{path}?{urllib.parse.urlencode({**query, 'limit': -1})}"
    with urllib.request.urlopen(address) as answer:  # the address is this process's own server
        return cast("list[dict[str, Any]]", json.loads(answer.read())["items"])


def recorded(url: str) -> dict[str, Any]:
    """Return what the server sends, by path."""
    found: dict[str, Any] = {
        "rollouts": items(url, "rollouts", sort_by="start_time"),
        "resources": items(url, "resources", sort_by="update_time"),
        "workers": items(url, "workers"),
    }
    for rollout in found["rollouts"]:
        name = rollout["rollout_id"]
        found[f"rollouts/{name}/attempts"] = items(url, f"rollouts/{name}/attempts", sort_by="sequence_id")
        for attempt in found[f"rollouts/{name}/attempts"]:
            given = {"rollout_id": name, "attempt_id": attempt["attempt_id"], "sort_by": "sequence_id"}
            found[f"spans of {attempt['attempt_id']}"] = items(url, "spans", **given)
    return found


async def main() -> None:
    """Fill a store, serve it, and record it or wait."""
    agl: Any = import_module("agentlightning")
    what, given = sys.argv[1:]
    store = agl.InMemoryLightningStore(thread_safe=True)
    await fill(agl, store)
    port = int(given) if what == "serve" else 4799
    server = agl.LightningStoreServer(store, host="127.0.0.1", port=port, launch_mode="thread")
    await server.start()
    try:
        if what == "record":
            answers = await asyncio.to_thread(recorded, f"http://127.0.0.1:{port}")
            text = json.dumps({"agentlightning": agl.__version__, "answers": answers}, indent=1)
            Path(given).write_text(text + "\n")
        else:
            sys.stdout.write(f"http://127.0.0.1:{port}\n")
            sys.stdout.flush()
            await asyncio.to_thread(sys.stdin.read)
    finally:
        await server.stop()


if __name__ == "__main__":
    asyncio.run(main())
