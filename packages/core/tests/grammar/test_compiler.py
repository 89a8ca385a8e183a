"""Compiled grammars against all answers of a finite language, and what a hostile grammar may cost."""

import random
import resource
import time
from pathlib import Path

import numpy as np
import pytest

from leyden.core.errors import GrammarError
from leyden.core.grammar.compiler import (
    COMPILED_GRAMMARS,
    MAX_GRAMMAR_CHARACTERS,
    Bits,
    GrammarCompiler,
    GrammarState,
    check_grammar,
    is_allowed,
)
from leyden.core.testing.finite_language import SIZE, FiniteLanguage

ANSWERS = ["a", "ab", "abd", "the calculator", "the calm", "naïve 🙂", ""]
GRAMMAR = 'start: "a" | "ab" "d"? | "the cal" ("culator" | "m") | "naïve 🙂" | ""'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FiniteLanguage.save(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def compiler(folder: Path) -> GrammarCompiler:
    return GrammarCompiler(str(folder), SIZE)


def tokens(bits_W: Bits) -> set[int]:
    return {token for token in range(SIZE) if is_allowed(bits_W, token)}


def fits(bits_W: Bits, language: FiniteLanguage, ids: list[int]) -> bool:
    """Where the text can only go on in one way, the library allows the token that the tokenizer would choose."""
    found, expected = tokens(bits_W), language.allowed(ids)
    return found == expected or (language.is_forced(ids) and len(found) == 1 and found <= expected)


def test_masks_hold_the_tokens_with_which_an_answer_can_go_on(compiler: GrammarCompiler, folder: Path) -> None:
    """The end is among them only where the answer may end."""
    language, draw, seen = FiniteLanguage(folder, ANSWERS), random.Random(0), set[bytes]()
    for _ in range(60):
        ids, state = list[int](), compiler.begin(GRAMMAR)
        while not ids or ids[-1] not in language.ends:
            bits_W = np.zeros(compiler.width, dtype=np.int32)
            assert state.write_allowed(bits_W)
            assert fits(bits_W, language, ids)
            ids.append(draw.choice(sorted(tokens(bits_W))))
            state.take(ids[-1])
        seen.add(language.text(ids))
        masks_TW = compiler.masks(GRAMMAR, ids)
        assert all(fits(bits_W, language, ids[:at]) for at, bits_W in enumerate(masks_TW))

    assert len(seen) > 4


def test_a_response_that_does_not_follow_its_grammar_has_no_masks(compiler: GrammarCompiler, folder: Path) -> None:
    language = FiniteLanguage(folder, ANSWERS)
    first, end = max(language.allowed([])), language.ends[0]
    for response in ([SIZE - 1], [10**9], [-1], [end, first], [first, *[first] * 20]):
        with pytest.raises(GrammarError, match=r"not allow|cannot be followed"):
            compiler.masks(GRAMMAR, response)


def test_a_failed_state_stays_failed(compiler: GrammarCompiler, folder: Path) -> None:
    state = compiler.begin(GRAMMAR)
    state.take(SIZE - 1)
    bits_W = np.zeros(compiler.width, dtype=np.int32)

    assert not state.write_allowed(bits_W)
    assert not state.write_allowed(bits_W)
    assert state.error


def test_a_panic_of_the_library_is_an_error_of_the_grammar(compiler: GrammarCompiler) -> None:
    """A panic is no `Exception`, so nothing else would catch it."""
    grammar = 'start: %json {"required": "' + "é" * 60 + '"}'
    for _ in range(2):
        with pytest.raises(GrammarError, match="panic"):
            compiler.begin(grammar)
    with pytest.raises(GrammarError, match="the grammar library failed"):
        check_grammar(grammar)
    assert compiler.begin(GRAMMAR).error == ""


def test_a_panic_within_a_response_fails_its_state_only(compiler: GrammarCompiler) -> None:
    class PanicException(BaseException):
        """As the library's own, which cannot be imported."""

    class Matcher:
        def deep_copy(self) -> "Matcher":
            raise PanicException("out of range")

    bits_W = np.zeros(compiler.width, dtype=np.int32)
    state = GrammarState(Matcher(), compiler.width)
    assert not state.write_allowed(bits_W)
    assert state.error == "the grammar library failed: out of range"
    assert compiler.begin(GRAMMAR).write_allowed(bits_W)


def test_invalid_grammars_are_refused_each_time_and_compiled_once(compiler: GrammarCompiler) -> None:
    for _ in range(2):
        with pytest.raises(GrammarError, match="invalid"):
            compiler.begin("start: /(/")
    with pytest.raises(GrammarError, match="invalid"):
        compiler.begin_at_once("start: /(/")
    assert compiler.begin_at_once('start: "never compiled"') is None


def test_states_of_one_grammar_do_not_share_their_tokens(compiler: GrammarCompiler, folder: Path) -> None:
    language = FiniteLanguage(folder, ANSWERS)
    one, other = compiler.begin(GRAMMAR), compiler.begin(GRAMMAR)
    first = max(language.allowed([]))
    one.take(first)
    found = [np.zeros(compiler.width, dtype=np.int32) for _ in range(2)]

    assert one.write_allowed(found[0])
    assert other.write_allowed(found[1])
    assert fits(found[0], language, [first])
    assert fits(found[1], language, [])


def test_only_recently_used_grammars_are_kept(folder: Path) -> None:
    compiler = GrammarCompiler(str(folder), SIZE)
    for number in range(COMPILED_GRAMMARS + 1):
        compiler.begin(f'start: "{number}"')

    assert compiler.begin_at_once('start: "0"') is None
    assert compiler.begin_at_once(f'start: "{COMPILED_GRAMMARS}"') is not None


def test_a_tokenizer_with_more_tokens_than_logits_is_refused(folder: Path) -> None:
    with pytest.raises(GrammarError, match="cannot be used with a grammar"):
        GrammarCompiler(str(folder), 100).begin(GRAMMAR)


HOSTILE = {
    "repeated": "start: /(a{1000}){1000}/",
    "repeated late": 'start: "x" /((a{100}){100}){100}/',
    "exponential automaton": "start: /(.*a.{12}|.*b.{13}|.*c.{14})+/",
    "ambiguous": 'start: a\na: a a a | "a" | ""',
    "recursive": 'start: %json {"$ref": "#"}',
    "itself": "start: start",
    "many alternatives": "start: " + " | ".join(f'"c{n}"' for n in range(9_000)),
    "long": "start: /a/ //" + "x" * (16 << 20),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_costs_little_and_raises_no_other_error(compiler: GrammarCompiler, name: str) -> None:
    """Wide bounds for slow machines: without limits, several of these need gigabytes or minutes."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, draw = time.process_time(), random.Random(0)
    try:
        check_grammar(HOSTILE[name])
        state = compiler.begin(HOSTILE[name])
    except GrammarError as error:
        assert len(str(error)) < 500
    else:
        bits_W = np.zeros(compiler.width, dtype=np.int32)
        for _ in range(50):
            if not state.write_allowed(bits_W) or not tokens(bits_W):
                break
            state.take(draw.choice(sorted(tokens(bits_W))))

    assert time.process_time() - began < 10
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) >> 10 < 500  # MiB


def test_a_grammar_has_a_greatest_length() -> None:
    with pytest.raises(GrammarError, match="characters"):
        check_grammar("start: /a/ //" + "x" * MAX_GRAMMAR_CHARACTERS)
    with pytest.raises(GrammarError):
        check_grammar('start: "\ud800"')
