from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.data.encoding.text import is_well_formed, well_formed
from leyden.core.data.plain.values import plain
from leyden.core.data.span import SpanEvent

odd_text = st.lists(st.integers(0xD7F0, 0xE010) | st.integers(0, 0x10FFFF)).map(lambda codes: "".join(map(chr, codes)))


@pytest.mark.parametrize(
    ("odd", "wanted"),
    [
        ("a\ud800", "a\ufffd"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("\ud800\ud800x", "\ufffd\ufffdx"),
        ("\ud83d" + "\ude00", "\U0001f600"),
        ("\ud800\U0001f600\0", "\ufffd\U0001f600\0"),
    ],
)
def test_halves_that_belong_together_are_one_character_and_lone_ones_are_replaced(odd: str, wanted: str) -> None:
    assert (well_formed(odd), is_well_formed(odd), is_well_formed(wanted)) == (wanted, False, True)


@given(odd_text)
def test_what_comes_out_can_be_encoded_and_what_could_be_is_the_same(text: str) -> None:
    better = well_formed(text)
    assert is_well_formed(better) and better.encode().decode() == better
    assert (better == text) == is_well_formed(text)
    assert plain([text]).value == [better]


def test_every_text_within_a_value_is_looked_at_and_nothing_else() -> None:
    half = "\ud800"
    value: Any = [{half: (half, b"\xed\xa0\x80", 1.5, None)}, SpanEvent(name=half, time=1.0, attributes={"k": [half]})]
    good = "\ufffd"
    wanted: Any = [
        {good: (good, b"\xed\xa0\x80", 1.5, None)},
        SpanEvent(name=good, time=1.0, attributes={"k": [good]}),
    ]
    assert well_formed(value) == wanted
