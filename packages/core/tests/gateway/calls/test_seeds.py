"""In a deterministic run a rollout's calls are drawn by what they ask: not by when, nor by what others ask."""

import random
from typing import Any

import httpx
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.data.identity import mint, new_key
from leyden.core.data.rollout import EnqueueRollout
from leyden.core.engine.base import GenerateRequest, ModelInfo
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.calls.seeds import REMEMBERED, CallSeeds
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import VOCABULARY, ByteCodec
from leyden.core.testing.scripted_engine import Scripted, ScriptedAnswer, ScriptedEngine

CODEC = ByteCodec()
ANSWER = 'ok <tool_call>{"name": "f", "arguments": {}}</tool_call>'
BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
}

Question = tuple[str, str, int]
"""Rollout, attempt and the token asked."""


def seeds(questions: list[Question], seed: int = 0) -> dict[str, list[int]]:
    """Seeds of each attempt's calls, sorted."""
    call_seeds = CallSeeds(seed)
    found: dict[str, list[int]] = {}
    for rollout, attempt, token in questions:
        found.setdefault(attempt, []).append(call_seeds.seed(rollout, attempt, [token]))
    return {attempt: sorted(values) for attempt, values in found.items()}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2)), max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_calls_changes_no_seed(calls_made: list[tuple[str, int]], shuffle: random.Random) -> None:
    questions = [(f"ro-{name}", f"at-{name}", token) for name, token in calls_made]
    mixed = list(questions)
    shuffle.shuffle(mixed)

    found = seeds(questions)

    assert seeds(mixed) == found
    assert len({value for values in found.values() for value in values}) == len(questions)


def test_a_second_attempt_draws_what_the_first_drew_and_another_run_does_not() -> None:
    first = seeds([("ro", "at-1", 5), ("ro", "at-1", 5), ("ro", "at-1", 6)])["at-1"]
    assert seeds([("ro", "at-1", 9), ("ro", "at-2", 5), ("ro", "at-2", 6), ("ro", "at-2", 5)])["at-2"] == first
    assert set(seeds([("ro", "at-1", 5)], seed=1)["at-1"]).isdisjoint(first)
    assert set(seeds([("other", "at-1", 5)])["at-1"]).isdisjoint(first)


def test_attempts_that_have_ended_are_forgotten() -> None:
    call_seeds = CallSeeds(0)
    early = call_seeds.seed("ro", "early", [1])
    for number in range(REMEMBERED):
        call_seeds.seed("other", str(number), [1])
    assert call_seeds.seed("ro", "early", [1]) == early


async def answered(call_seeds: CallSeeds | None, rollout: str, **calls_made: Any) -> list[tuple[int | None, str]]:
    """The seed that the engine is given and the id of the tool call that the agent gets, of each choice."""
    requests: list[GenerateRequest] = []
    store, key = MemoryStore(), new_key()

    def script(request: GenerateRequest) -> Scripted:
        requests.append(request)
        return ScriptedAnswer(ids=CODEC.answer(ANSWER))

    engine = ScriptedEngine(script, model=ModelInfo(name="m", context_length=4096, vocab_size=VOCABULARY))
    policy = ServedPolicy(name="policy", engine=engine, codec=CODEC, call_seeds=call_seeds)
    server = GatewayServer(Gateway(store, policy, key).app)
    url = await server.start()
    try:
        await store.enqueue_many_rollouts([EnqueueRollout(input="a task", rollout_id=rollout, mode="train")])
        attempted = await store.dequeue_rollout()
        assert attempted is not None
        token = mint(key, rollout, attempted.attempt.attempt_id)
        async with httpx.AsyncClient() as client:
            message = await client.post(f"{url}/a/{token}/v1/chat/completions", json={**BODY, **calls_made})
    finally:
        await server.stop()
        await engine.close()
        await store.close()
    ids = [choice["message"]["tool_calls"][0]["id"] for choice in message.json()["choices"]]
    return [(request.sampling.seed, name) for request, name in zip(requests, ids, strict=True)]


async def test_the_engine_gets_the_seed_and_the_agent_the_same_ids_of_tool_calls() -> None:
    first, again = [await answered(CallSeeds(4), "ro-1") for _ in range(2)]
    (other,), (free,) = await answered(CallSeeds(4), "ro-2"), await answered(None, "ro-1")

    assert first == again
    assert first[0][0] is not None
    assert free[0] is None
    assert len({first[0][1], other[1], free[1]}) == 3
    assert other[0] not in (None, first[0][0])


async def test_choices_of_one_call_differ() -> None:
    (one, two), again = await answered(CallSeeds(4), "ro-1", n=2), await answered(CallSeeds(4), "ro-1", n=2)
    assert [one, two] == again
    assert one[0] != two[0]
    assert one[1] != two[1]


def test_a_run_on_a_shared_store_draws_as_alone() -> None:
    alone, shared = CallSeeds(3), CallSeeds(3, "calc-1a2b.")
    assert shared.seed("calc-1a2b.train-0", "a", [1, 2]) == alone.seed("train-0", "a", [1, 2])
    assert shared.seed("other.train-0", "b", [1, 2]) != alone.seed("train-0", "b", [1, 2])
