"""Grammars in the engine: which tokens it samples, how often, and what one call's grammar does to other calls."""

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import GenerateRequest, TokenChunk
from leyden.core.engine.embedded import grammar_masks
from leyden.core.engine.embedded.engine import EmbeddedConfig, EmbeddedEngine
from leyden.core.errors import EngineError, UnusableGrammar
from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec
from leyden.core.grammar.compiler import GrammarCompiler, GrammarState, check_grammar, write_allowed_together
from leyden.core.testing.finite_language import SIZE, FiniteLanguage
from leyden.core.testing.tiny_models import tiny_model

ANSWERS = ["a", "ab", "ba", "bba", "c", "ca"]
GRAMMAR = 'start: "a" "b"? | "b" "b"? "a" | "c" "a"?'
SLOW = 'start: "a" /[ab]{1,30}/'
PROMPT = [70, 71, 72, 73]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FiniteLanguage.save(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def language(folder: Path) -> FiniteLanguage:
    return FiniteLanguage(folder, ANSWERS)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return tiny_model(vocab_size=SIZE)


@asynccontextmanager
async def serving(model: nn.Module, folder: Path | None) -> AsyncGenerator[EmbeddedEngine]:
    engine = EmbeddedEngine(
        model, name="m", config=EmbeddedConfig(chunk_seconds=0.0), tokenizer=None if folder is None else str(folder)
    )
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def request(number: int, ends: tuple[int, ...] = (), **sampling: Any) -> GenerateRequest:
    return GenerateRequest(
        request_id=f"{number}", prompt_ids=PROMPT, sampling=Sampling(seed=number, **sampling), stop_ids=ends
    )


async def answer(engine: EmbeddedEngine, one: GenerateRequest) -> tuple[list[int], list[float], str | None]:
    chunks = [chunk async for chunk in engine.generate(one)]
    ids = [token for chunk in chunks for token in chunk.ids]
    return ids, [value for chunk in chunks for value in chunk.sampling_logprobs], chunks[-1].finish_reason


def chances(model: nn.Module, language: FiniteLanguage, ids: list[int], temperature: float) -> dict[int, float]:
    """The probability of each allowed token, from a plain forward pass."""
    with torch.no_grad():
        output: Any = model(torch.tensor([[*PROMPT, *ids]]))
    weights = {token: math.exp(output.logits[0, -1, token].item() / temperature) for token in language.allowed(ids)}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


async def test_answers_come_as_often_as_the_masked_distribution_says(
    model: nn.Module, folder: Path, language: FiniteLanguage
) -> None:
    """Every answer ends with an end token, and ends only there."""
    expected: dict[tuple[int, ...], float] = {}
    open_ids: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while open_ids:
        ids, chance = open_ids.pop()
        for token, own in chances(model, language, list(ids), 2.0).items():
            if token in language.ends:
                expected[(*ids, token)] = chance * own
            else:
                open_ids.append(((*ids, token), chance * own))
    count = 1500
    async with serving(model, folder) as engine:
        asked = [request(n, language.ends, temperature=2.0, grammar=GRAMMAR) for n in range(count)]
        found = await asyncio.gather(*(answer(engine, one) for one in asked))

    assert sum(expected.values()) == pytest.approx(1.0)
    assert {finish for _, _, finish in found} == {"stop"}
    seen = Counter(tuple(ids) for ids, _, _ in found)
    assert seen.keys() <= expected.keys()
    for ids, logprobs, _ in found[:50]:
        assert sum(logprobs) == pytest.approx(math.log(expected[tuple(ids)]), abs=1e-4)
    common = {ids: chance for ids, chance in expected.items() if count * chance >= 5}
    chi_square = sum((seen[ids] - count * chance) ** 2 / (count * chance) for ids, chance in common.items())
    assert len(common) > 4
    assert chi_square < len(common) + 4 * math.sqrt(2 * len(common))


async def test_any_of_several_end_tokens_ends_an_answer(
    model: nn.Module, language: FiniteLanguage, tmp_path: Path
) -> None:
    """The tokenizer's own end token, and those of its generation config."""
    FiniteLanguage.save(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 1]}')
    several = FiniteLanguage(tmp_path, ANSWERS)
    async with serving(model, tmp_path) as engine:
        asked = [request(n, several.ends, temperature=9.0, grammar=GRAMMAR) for n in range(300)]
        found = await asyncio.gather(*(answer(engine, one) for one in asked))

    assert set(several.ends) == {0, 1, 2}
    assert {ids[-1] for ids, _, _ in found} == {0, 1, 2}
    assert all(several.text(ids) in several.answers for ids, _, _ in found)
    assert not any(token in several.ends for ids, _, _ in found for token in ids[:-1])


async def test_calls_with_and_without_a_grammar_are_decoded_together(
    model: nn.Module, folder: Path, language: FiniteLanguage
) -> None:
    """Each call gets the same tokens as alone, whatever is beside it."""
    asked = [
        request(n, language.ends, max_tokens=12, **kind)
        for n, kind in enumerate(
            3
            * [
                {},
                {"grammar": GRAMMAR, "temperature": 0.0},
                {"grammar": GRAMMAR, "top_k": 2, "min_p": 0.01},
                {"repetition_penalty": 1.4, "frequency_penalty": 0.5},
                {"grammar": GRAMMAR, "presence_penalty": -1.0, "logit_bias": ((66, 4.0),)},
            ]
        )
    ]
    async with serving(model, folder) as engine:
        together = await asyncio.gather(*(answer(engine, one) for one in asked))
    async with serving(model, folder) as engine:
        alone = [await answer(engine, one) for one in asked]

    assert [(ids, finish) for ids, _, finish in together] == [(ids, finish) for ids, _, finish in alone]
    for (_, one, _), (_, other, _) in zip(together, alone, strict=True):
        assert one == pytest.approx(other, abs=1e-4)


async def test_weights_that_change_within_an_answer_keep_its_grammar(model: nn.Module, folder: Path) -> None:
    language, other = FiniteLanguage(folder, ANSWERS), tiny_model(vocab_size=SIZE, seed=1)
    long = "start: /[ab]{40,60}/"
    async with serving(model, folder) as engine:
        stream = cast("AsyncGenerator[TokenChunk]", engine.generate(request(0, language.ends, grammar=long)))
        chunks = [await anext(stream)]
        await engine.update_weights(dict(other.state_dict()), 1)
        chunks += [chunk async for chunk in stream]

    ids = [token for chunk in chunks for token in chunk.ids]
    text = language.text(ids)
    assert {chunk.version for chunk in chunks} == {0, 1}
    assert chunks[-1].finish_reason == "stop"
    assert set(text) == set(b"ab")
    assert 40 <= len(text) <= 60


async def test_an_invalid_grammar_fails_its_own_call_only(
    model: nn.Module, folder: Path, language: FiniteLanguage
) -> None:
    good = [request(n, language.ends, grammar=GRAMMAR) for n in range(4)]
    bad = [request(n, language.ends, grammar="start: /(/") for n in range(4)]
    async with serving(model, folder) as engine:
        found = await asyncio.gather(*(answer(engine, one) for one in [*good, *bad]), return_exceptions=True)

        assert all(isinstance(one, tuple) and one[2] == "stop" for one in found[:4])
        assert all(isinstance(one, EngineError) and "invalid" in str(one) for one in found[4:])
        assert engine.in_flight == 0


async def test_a_grammar_that_fails_within_an_answer_fails_its_own_call_only(
    model: nn.Module, folder: Path, language: FiniteLanguage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both kinds of failure: the library's own, and an exception."""
    original, made = GrammarState.write_allowed, list[GrammarState]()

    def write_together(states: list[GrammarState], bits_RW: Any, *, parallel: bool) -> None:
        for state, bits_W in zip(states, bits_RW, strict=True):
            write(state, bits_W)

    def write(state: GrammarState, bits_W: Any) -> bool:
        if state not in made:
            made.append(state)
        if made.index(state) == 1:
            state.error = "too complex"
            return False
        if made.index(state) == 2:
            raise RuntimeError("broken")
        return original(state, bits_W)

    async with serving(model, folder) as engine:
        assert (await answer(engine, request(0, language.ends, grammar=GRAMMAR)))[2] == "stop"
        monkeypatch.setattr(GrammarState, "write_allowed", write)
        monkeypatch.setattr(grammar_masks, "write_allowed_together", write_together)
        asked = [request(n, language.ends, grammar=GRAMMAR) for n in range(4)]
        found = await asyncio.gather(*(answer(engine, one) for one in asked), return_exceptions=True)
        plain = await answer(engine, request(9, max_tokens=3))

    failures = [str(one) for one in found if isinstance(one, UnusableGrammar)]
    assert sorted(failures) == [failure for failure in sorted(failures) if "cannot follow its grammar" in failure]
    assert len(failures) == 2
    assert sum(isinstance(one, tuple) for one in found) == 2
    assert len(plain[0]) == 3


async def test_a_slow_grammar_delays_its_own_call_only(
    model: nn.Module, folder: Path, language: FiniteLanguage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its masks are not computed at all until every other call has ended; then it ends as it would have alone."""
    slow = request(0, language.ends, grammar=SLOW)
    async with serving(model, folder) as engine:
        expected = await answer(engine, slow)
    original, go, first = GrammarState.write_allowed, threading.Event(), list[GrammarState]()

    def write(state: GrammarState, bits_W: Any) -> bool:
        if not first:
            first.append(state)
        if state is first[0]:
            assert go.wait(60)
        return original(state, bits_W)

    async with serving(model, folder) as engine:
        for grammar in (SLOW, GRAMMAR):
            await answer(engine, request(1, language.ends, grammar=grammar, max_tokens=1))
        monkeypatch.setattr(GrammarState, "write_allowed", write)
        waiting = asyncio.create_task(answer(engine, slow))
        while not first:
            await asyncio.sleep(0.001)
        others = [
            request(n, language.ends, **kind) for n in range(6) for kind in ({"grammar": GRAMMAR}, {"max_tokens": 20})
        ]
        found = await asyncio.gather(*(answer(engine, one) for one in others))
        assert not waiting.done()
        go.set()
        ids, logprobs, finish = await waiting

    assert all(one[2] in ("stop", "length") for one in found)
    assert (ids, finish) == (expected[0], expected[2])
    assert logprobs == pytest.approx(expected[1], abs=1e-4)


async def test_an_abandoned_call_with_a_grammar_leaves_its_slot(
    model: nn.Module, folder: Path, language: FiniteLanguage
) -> None:
    async with serving(model, folder) as engine:
        for n in range(3):
            stream = cast("AsyncGenerator[TokenChunk]", engine.generate(request(n, grammar="start: /a{200}/")))
            await anext(stream)
            await stream.aclose()
        assert (await answer(engine, request(5, language.ends, grammar=GRAMMAR)))[2] == "stop"
        assert engine.in_flight == 0


@pytest.mark.parametrize("grammar", ['start: %json {"$ref": "#"}', "start: <[99999999]>"])
async def test_a_grammar_that_only_the_tokenizer_shows_to_be_impossible_is_reported_as_such(
    model: nn.Module, folder: Path, grammar: str
) -> None:
    check_grammar(grammar)
    async with serving(model, folder) as engine:
        for n in range(2):
            with pytest.raises(UnusableGrammar):
                await answer(engine, request(n, grammar=grammar))
        assert len((await answer(engine, request(2, max_tokens=4)))[0]) == 4


async def test_a_model_without_its_tokenizer_takes_no_grammar(model: nn.Module) -> None:
    async with serving(model, None) as engine:
        with pytest.raises(EngineError, match="served without its tokenizer, so it takes no grammar"):
            await answer(engine, request(0, grammar=GRAMMAR))
        assert len((await answer(engine, request(0, max_tokens=4)))[0]) == 4


async def test_an_engine_that_closes_while_a_grammar_is_compiled_fails_the_call(
    model: nn.Module, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go = threading.Event(), threading.Event()
    async with serving(model, folder) as engine:
        compiler: Any = engine._grammars  # pyright: ignore[reportPrivateUsage]
        original = compiler.begin

        def begin(grammar: str) -> GrammarState:
            entered.set()
            assert go.wait(60)
            return original(grammar)

        monkeypatch.setattr(compiler, "begin", begin)
        waiting = asyncio.create_task(answer(engine, request(0, grammar=GRAMMAR)))
        await asyncio.to_thread(entered.wait)
        await engine.close()
        go.set()
        with pytest.raises(EngineError, match="closed"):
            await asyncio.wait_for(waiting, 30)


class SlowState:
    """A state whose masks take as long as it says."""

    width = 1

    def __init__(self, write: Callable[[], object] = lambda: None) -> None:
        self.error = ""
        self._write = write

    def take(self, token: int) -> None:
        pass

    def write_allowed(self, bits_W: Any) -> bool:
        self._write()
        bits_W[0] = 1
        return True


def row_of(write: Callable[[], object] = lambda: None) -> grammar_masks.RowGrammar:
    return grammar_masks.RowGrammar(cast(Any, SlowState(write)))


def computed(masks: grammar_masks.GrammarMasks, rows: list[grammar_masks.RowGrammar]) -> list[int]:
    """Compute the masks of a step, however long it takes; return how many were computed with each row's mask."""
    masks.begin(rows)
    for row in rows:
        assert row.masks is not None and row.masks.ready.wait(60)
    assert masks.ready(rows).rows == [*range(len(rows))]
    together = [len(row.masks.bits_RW) for row in rows if row.masks is not None]
    for row in rows:
        row.take(0)
    return together


def test_masks_behind_slow_ones_are_computed_on_other_threads() -> None:
    """Up to one thread less than there are; the step returns without the slow ones."""
    go = threading.Event()
    slow = grammar_masks.THREADS - 1
    rows = [row_of(lambda: go.wait(60)) for _ in range(slow)] + [row_of() for _ in range(3)]
    for row in rows:
        row.alone = True
    masks = grammar_masks.GrammarMasks()
    masks.begin([None, *rows])
    ready = masks.ready([None, *rows])
    again = (masks.begin([None, *rows]), masks.ready([None, *rows]))[1]
    go.set()
    for row in rows:
        assert row.masks is not None
        row.masks.ready.wait(60)
    last = masks.ready(rows)
    masks.close()

    assert ready.rows == again.rows == [0, *range(slow + 1, len(rows) + 1)]
    assert ready.masks[0] is None
    assert last.rows == [*range(len(rows))]
    assert not last.failed
    assert all(np.array_equal(cast(Any, bits_W), [1]) for bits_W in last.masks)


def test_a_row_whose_masks_are_slow_is_computed_by_itself_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step does not wait for masks that are slow together; the rows that were not slow are together again."""
    go, busy = threading.Event(), [0.0]

    def write_slowly() -> None:
        until = time.thread_time() + busy[0]
        while time.thread_time() < until:
            pass

    def together(states: list[Any], bits_RW: Any, *, parallel: bool) -> None:
        assert go.wait(60)
        bits_RW[:] = 1

    monkeypatch.setattr(grammar_masks, "write_allowed_together", together)
    rows = [row_of(write_slowly), row_of(), row_of()]
    masks = grammar_masks.GrammarMasks()
    masks.begin([*rows, None])
    assert masks.ready([*rows, None]).rows == [3]
    go.set()
    for row in rows:
        assert row.masks is not None and row.masks.ready.wait(60)
        row.take(0)
    busy[0] = 2 * grammar_masks.SLOW_SECONDS
    alone = computed(masks, rows)
    busy[0] = 0.0
    later = [computed(masks, rows) for _ in range(2)]
    masks.close()

    assert alone == [1, 1, 1]
    assert later == [[1, 2, 2], [1, 2, 2]]


def test_masks_that_were_quick_are_computed_by_the_decode_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first masks of responses are not, nor those that would take long together; a slow one is the last there."""
    here, pause = list[bool](), [0.0]

    def together(states: list[Any], bits_RW: Any, *, parallel: bool) -> None:
        here.append(threading.get_ident() == decode_thread)
        assert here[-1] != parallel
        until = time.thread_time() + pause[0]
        while time.thread_time() < until:
            pass
        bits_RW[:] = 1

    decode_thread = threading.get_ident()
    monkeypatch.setattr(grammar_masks, "write_allowed_together", together)
    rows = [row_of(), row_of()]
    masks = grammar_masks.GrammarMasks()
    sizes = [computed(masks, rows)]
    for seconds in (0.0, 0.6 * grammar_masks.AT_ONCE_SECONDS, 0.0):
        for row in rows:
            row.seconds, row.alone = seconds, False
        sizes.append(computed(masks, rows))
    pause[0] = 2 * (grammar_masks.SLOW_SECONDS + 2 * grammar_masks.ROW_SECONDS)
    for row in rows:
        row.seconds, row.alone = 0.0, False
    sizes += [computed(masks, rows) for _ in range(2)]
    masks.close()

    assert here == [False, True, False, True, True]
    assert sizes == [[2, 2]] * 5 + [[1, 1]]


@pytest.mark.parametrize("parallel", [True, False])
def test_masks_together_are_those_of_each_state(folder: Path, parallel: bool) -> None:
    """Also behind a state that has failed, and of one that has ended."""
    compiler, codec = GrammarCompiler(str(folder), SIZE), HuggingFaceCodec(folder)
    token_of = {codec.token_bytes(token): token for token in range(SIZE)}
    texts = ["", "a", "x", "bb", "ca"]

    def states() -> list[GrammarState]:
        begun = [compiler.begin(GRAMMAR) for _ in texts]
        for state, text in zip(begun, texts, strict=True):
            for letter in text:
                state.take(token_of[letter.encode()])
        return begun

    some, others = states(), states()
    bits_RW = np.zeros((len(texts), compiler.width), dtype=np.int32)
    write_allowed_together(some, bits_RW, parallel=parallel)
    for state, other, bits_W in zip(some, others, bits_RW, strict=True):
        alone = np.zeros(compiler.width, dtype=np.int32)
        assert other.write_allowed(alone) == (state.error == "")
        assert other.error == state.error
        assert np.array_equal(alone, bits_W)
    assert [bool(state.error) for state in some] == [False, False, True, False, False]
