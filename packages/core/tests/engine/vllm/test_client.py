import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import GenerateRequest
from leyden.core.engine.vllm.client import GeneratedTokens, ServerUnreachable, VllmClient
from leyden.core.engine.vllm.server import BASE
from leyden.core.errors import EngineError
from leyden.core.testing.engine_contract import until
from leyden.core.testing.servers.vllm_double import VllmDouble

PROMPT = [3, 1, 4]


@pytest.fixture
async def double() -> AsyncIterator[VllmDouble]:
    double = VllmDouble(key="secret")
    await double.start()
    yield double
    await double.stop()


@pytest.fixture
async def client(double: VllmDouble) -> AsyncIterator[VllmClient]:
    client = VllmClient(double.url, key="secret")
    yield client
    await client.close()


def request(sampling: Sampling, top: int = 0) -> GenerateRequest:
    return GenerateRequest(
        request_id="a", prompt_ids=PROMPT, sampling=sampling, stop_ids=(7, 8), top_logprobs=top, rollout_id="r"
    )


async def generated(client: VllmClient, sampling: Sampling, limit: int = 6) -> list[GeneratedTokens]:
    return [part async for part in client.generate(BASE, request(sampling), PROMPT, limit)]


async def test_everything_that_decides_a_draw_is_said(client: VllmClient, double: VllmDouble) -> None:
    _ = [
        part
        async for part in client.generate(BASE, request(Sampling(temperature=0.7, top_p=0.9, seed=3), 2), [5, 6], 4)
    ]
    path, body = double.requests[-1]
    assert path == "/v1/completions"
    assert body == {
        "model": BASE,
        "prompt": [5, 6],
        "max_tokens": 4,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": 3,
        "stop_token_ids": [7, 8],
        "ignore_eos": True,
        "skip_special_tokens": False,
        "logprobs": 2,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream": True,
    }


async def test_the_likeliest_token_alone_is_asked_for_as_vllm_has_it(client: VllmClient, double: VllmDouble) -> None:
    await generated(client, Sampling(top_p=0))
    _, body = double.requests[-1]
    assert (body["top_p"], body["top_k"]) == (1.0, 1)


async def test_what_limits_and_changes_the_distribution_is_sent(client: VllmClient, double: VllmDouble) -> None:
    sampling = Sampling(
        top_k=5,
        min_p=0.1,
        presence_penalty=0.2,
        frequency_penalty=-0.3,
        repetition_penalty=1.4,
        logit_bias=((3, 2.5), (4, -100.0)),
        stop_ids=(9,),
        grammar="start: /a*/",
    )
    _ = [part async for part in client.generate(BASE, request(sampling), PROMPT, 4)]
    body = double.requests[-1][1]
    assert (body["top_k"], body["min_p"], body["repetition_penalty"]) == (5, 0.1, 1.4)
    assert (body["presence_penalty"], body["frequency_penalty"]) == (0.2, -0.3)
    assert body["logit_bias"] == {"3": 2.5, "4": -100.0}
    assert body["stop_token_ids"] == [7, 8, 9]
    assert body["structured_outputs"] == {"grammar": "start: /a*/"}


async def test_a_closed_call_is_aborted_at_the_server(client: VllmClient, double: VllmDouble) -> None:
    call = client.generate(BASE, request(Sampling(temperature=0)), PROMPT, 200)
    await anext(call)
    assert double.running == 1
    await call.aclose()
    await until(lambda: double.running == 0)


async def test_scores_are_raw(client: VllmClient, double: VllmDouble) -> None:
    scored = await client.score(BASE, PROMPT, 2)
    positions = [double.logprobs(3), double.logprobs(1)]
    assert scored.logprobs == pytest.approx([positions[0][1], positions[1][4]])
    assert [[token for token, _ in top] for top in scored.top] == [
        list(np.argsort(-position)[:2]) for position in positions
    ]
    assert await client.next_log_prob(BASE, PROMPT, 9) == pytest.approx(double.logprobs(4)[9])


async def test_a_pause_is_waited_out(client: VllmClient, double: VllmDouble) -> None:
    double.paused = True
    call = asyncio.create_task(generated(client, Sampling(temperature=0)))
    health = asyncio.create_task(client.is_healthy())
    assert await health
    assert not call.done()
    double.paused = False
    assert sum(len(part.ids) for part in await call) == 6


async def test_a_pause_without_end_is_given_up(double: VllmDouble) -> None:
    double.paused = True
    client = VllmClient(double.url, key="secret", pause_seconds=0)
    with pytest.raises(ServerUnreachable, match=r"refused /v1/completions \(503\): paused"):
        await generated(client, Sampling())
    await client.close()


async def test_a_server_that_dies_is_lost(client: VllmClient, double: VllmDouble) -> None:
    double.die_after = 3
    parts: list[GeneratedTokens] = []
    with pytest.raises(ServerUnreachable, match="is lost") as caught:
        async for part in client.generate(BASE, request(Sampling(temperature=0)), PROMPT, 100):
            parts.append(part)
    assert "\n" not in str(caught.value)
    assert sum(len(part.ids) for part in parts) == 3
    assert not await client.is_healthy()
    with pytest.raises(ServerUnreachable):
        await client.models()


@pytest.mark.parametrize(
    ("model", "prompt", "message"),
    [("nobody", PROMPT, "nobody does not exist"), (BASE, [1] * 400, "do not fit")],
)
async def test_a_refusal_is_one_line(client: VllmClient, model: str, prompt: list[int], message: str) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        _ = [part async for part in client.generate(model, request(Sampling()), prompt, 5)]
    assert not isinstance(caught.value, ServerUnreachable)
    assert "\n" not in str(caught.value)


async def test_a_wrong_key_is_refused(double: VllmDouble) -> None:
    client = VllmClient(double.url, key="guessed")
    with pytest.raises(EngineError, match=r"\(401\): Unauthorized"):
        await client.models()
    await client.close()


@pytest.mark.parametrize("temperature", [0, 1.0])
async def test_the_likeliest_tokens_that_were_not_told_are_asked_for_again(
    client: VllmClient, double: VllmDouble, temperature: float
) -> None:
    double.without_likeliest_tokens = 5
    ids = list(PROMPT)
    seen: list[int] = []
    async for part in client.generate(BASE, request(Sampling(temperature=temperature, seed=2), 3), PROMPT, 40):
        for token, value, position in zip(part.ids, part.logprobs, part.top, strict=True):
            raw = double.logprobs(ids[-1])
            assert value == pytest.approx(raw[token])
            assert [token for token, _ in position] == list(np.argsort(-raw)[:3])
            ids.append(token)
            seen.append(token)
    assert len(seen) > 5
    assert double.without_likeliest_tokens == 0


async def test_token_0_is_drawn_with_its_own_log_probability(client: VllmClient, double: VllmDouble) -> None:
    raw = double.logprobs(4)
    for seed in range(2000):
        double.without_likeliest_tokens = 1
        (first, *_) = await _first(client, seed)
        if first.ids == [0]:
            assert first.logprobs == pytest.approx([raw[0]])
            return
    raise AssertionError("token 0 was never drawn")


async def _first(client: VllmClient, seed: int) -> list[GeneratedTokens]:
    return [part async for part in client.generate(BASE, request(Sampling(seed=seed), 1), PROMPT, 1)]


async def test_a_server_that_never_tells_the_likeliest_tokens_is_refused(
    client: VllmClient, double: VllmDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leyden.core.engine.vllm.client.TRY_SECONDS", 0)
    double.without_likeliest_tokens = 10_000
    with pytest.raises(EngineError, match="did not return the 3 likeliest tokens"):
        await client.next_top(BASE, PROMPT, 1.0, 3)
