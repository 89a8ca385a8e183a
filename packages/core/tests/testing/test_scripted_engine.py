import asyncio
import subprocess
import sys
from collections.abc import Mapping

import pytest

from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import Engine, EngineRecord, GenerateRequest, ModelInfo
from leyden.core.errors import EngineError
from leyden.core.testing.engine_contract import EngineContract, chunks_of, ids_of, request
from leyden.core.testing.scripted_engine import ScriptedAnswer, ScriptedEngine, scripted_log_prob, scripted_top

PLENTY = Sampling(max_tokens=100)


def endless(call: GenerateRequest) -> ScriptedAnswer:
    first = sum(call.prompt_ids)
    return ScriptedAnswer(ids=[(first * (n + 1)) % 101 for n in range(400)], chunk_size=3, chunk_delay=0.001)


class TestScriptedEngineContract(EngineContract):
    def make_engine(self) -> tuple[Engine, list[EngineRecord]]:
        engine = ScriptedEngine(endless, model=ModelInfo(name="tiny", context_length=300, vocab_size=101))
        return engine, engine.log

    def new_weights(self) -> Mapping[str, object]:
        return {}

    def in_flight(self, engine: Engine) -> int:
        assert isinstance(engine, ScriptedEngine)
        return engine.in_flight


async def test_a_list_is_answered_in_order_and_then_runs_out() -> None:
    engine = ScriptedEngine([[7, 8], ScriptedAnswer(ids=[9], finish_reason="length")])
    first = await chunks_of(engine, request("a", sampling=PLENTY))
    second = await chunks_of(engine, request("b", sampling=PLENTY))
    assert [(c.ids, c.finish_reason) for c in first + second] == [([7, 8], "stop"), ([9], "length")]
    with pytest.raises(EngineError, match="2 answers, and this is call 3"):
        await chunks_of(engine, request("c"))


async def test_log_probabilities_can_be_recomputed_across_chunks() -> None:
    engine = ScriptedEngine([ScriptedAnswer(ids=[7, 8, 9], chunk_size=2)])
    chunks = await chunks_of(engine, request("a", [1, 2], sampling=Sampling(temperature=0.5)))
    assert [c.logprobs for c in chunks] == [
        [scripted_log_prob(2, 7), scripted_log_prob(7, 8)],
        [scripted_log_prob(8, 9)],
    ]
    assert chunks[1].sampling_logprobs == [scripted_log_prob(8, 9) / 0.5]


async def test_the_likeliest_ids_can_be_recomputed_across_chunks_and_the_drawn_one_may_be_among_them() -> None:
    engine = ScriptedEngine([ScriptedAnswer(ids=[scripted_top(2, 1, 256)[0][0], 8], chunk_size=1)])
    call = GenerateRequest(request_id="a", prompt_ids=[1, 2], sampling=PLENTY, top_logprobs=4)
    first, second = await chunks_of(engine, call)
    assert (first.top, second.top) == ([scripted_top(2, 4, 256)], [scripted_top(first.ids[0], 4, 256)])
    assert first.top is not None
    assert first.top[0][0] == (first.ids[0], first.logprobs[0])


async def test_an_update_in_flight_is_served_from_the_next_chunk_on_and_logged() -> None:
    engine = ScriptedEngine([ScriptedAnswer(ids=[7, 8, 9], chunk_size=1)])
    versions: list[int] = []
    async for chunk in engine.generate(request("a", sampling=PLENTY)):
        versions.append(chunk.version)
        if len(versions) == 1:
            await engine.update_weights({}, 5)
    assert versions == [0, 5, 5]
    assert (engine.log[0].version, engine.log[0].versions) == (0, [(0, 1), (5, 2)])


async def test_an_error_comes_at_once_or_after_what_was_delivered() -> None:
    engine = ScriptedEngine([OSError("at once"), ScriptedAnswer(ids=[1, 2], chunk_size=1, error=OSError("later"))])
    with pytest.raises(OSError, match="at once"):
        await chunks_of(engine, request("a"))
    seen: list[int] = []
    with pytest.raises(OSError, match="later"):
        async for chunk in engine.generate(request("b")):
            assert chunk.finish_reason is None
            seen += chunk.ids
    assert seen == [1, 2]
    assert [(r.request_id, r.response_ids, r.finish_reason) for r in engine.log] == [
        ("a", [], "abort"),
        ("b", [1, 2], "abort"),
    ]


async def test_an_empty_answer_is_one_empty_chunk() -> None:
    chunks = await chunks_of(ScriptedEngine([[]]), request("a"))
    assert [(c.ids, c.finish_reason) for c in chunks] == [([], "stop")]


async def test_peak_counts_calls_in_flight_at_once() -> None:
    engine = ScriptedEngine(lambda _: ScriptedAnswer(ids=[1], delay=0.02))
    await asyncio.gather(*(chunks_of(engine, request(f"{n}")) for n in range(5)))
    await chunks_of(engine, request("last"))
    assert (engine.peak, engine.in_flight, len(engine.log)) == (5, 0, 6)


async def test_updates_are_noted_and_served() -> None:
    engine = ScriptedEngine(lambda _: [1], version=3)
    await engine.update_weights({}, 4)
    assert engine.versions == [4]
    assert (await chunks_of(engine, request("a")))[0].version == 4


async def test_max_tokens_cuts_the_script() -> None:
    chunks = await chunks_of(ScriptedEngine([[1, 2, 3]]), request("a", sampling=Sampling(max_tokens=2)))
    assert (ids_of(chunks), chunks[-1].finish_reason) == ([1, 2], "length")


@pytest.mark.integration
def test_it_loads_no_torch() -> None:
    code = "import sys, leyden.core.testing.scripted_engine; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
