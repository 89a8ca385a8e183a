from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.gateway.codecs.text import StopFilter, TextStream
from leyden.core.testing.byte_codec import ByteCodec

CUTS = st.lists(st.integers(0, 5), max_size=60)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)


def pushed(stream: TextStream, ids: Sequence[int], cuts: list[int]) -> list[str]:
    pieces, position = list[str](), 0
    for size in cuts:
        pieces.append(stream.push(ids[position : position + size]))
        position += size
    return [*pieces, stream.push(ids[position:]), stream.finish()]


@given(st.binary(max_size=60), CUTS)
def test_streamed_text_is_the_text_decoded_at_once(data: bytes, cuts: list[int]) -> None:
    codec = ByteCodec()
    assert "".join(pushed(TextStream(codec.decode), list(data), cuts)) == codec.decode(list(data))


@given(st.text(max_size=30))
def test_no_character_is_ever_given_out_in_parts(text: str) -> None:
    data = text.encode(errors="replace")
    pieces = pushed(TextStream(ByteCodec().decode), list(data), [1] * len(data))
    for piece in pieces[:-2]:
        assert "\ufffd" not in piece


Decode = Callable[[Sequence[int]], str]
HALVES = ["🙂".encode()[:2], "🙂".encode()[2:], "语言".encode()[:4], "言".encode()[1:], "e\u0301".encode()[:2], b"ab"]
"""Tokens that begin or end in the middle of a character, as byte-level vocabularies have them."""


@pytest.fixture(scope="module")
def byte_level() -> Decode:
    """The decoder of a byte-level vocabulary: every byte, then `HALVES`; id 300 and above are control tokens."""
    library: Any = tokenizers
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(256 + n) for n, byte in enumerate(sorted(set(range(256)) - set(printable)))}
    words = [bytes([byte]) for byte in range(256)] + HALVES
    vocabulary = {"".join(letters[byte] for byte in word): position for position, word in enumerate(words)}
    backend: Any = library.Tokenizer(library.models.BPE(vocabulary, []))
    backend.decoder = library.decoders.ByteLevel()
    return lambda ids: backend.decode([token for token in ids if token < 300])


def byte_fallback(ids: Sequence[int]) -> str:
    """Decode bytes as SentencePiece vocabularies with byte fallback do: all of a run is U+FFFD if any of it is."""
    library: Any = tokenizers
    return library.decoders.ByteFallback().decode([f"<0x{token:02X}>" for token in ids])


ANY_IDS = st.lists(st.integers(0, 255 + len(HALVES)) | st.sampled_from([255, 128, 195, 226, 240]), max_size=40)


@given(ANY_IDS, CUTS)
def test_pieces_of_any_bytes_are_the_text_decoded_at_once(byte_level: Decode, ids: list[int], cuts: list[int]) -> None:
    assert "".join(pushed(TextStream(byte_level), ids, cuts)) == byte_level(ids)


@given(st.text(st.sampled_from("aé語🙂\u0301\ufffd "), max_size=20), CUTS, st.data())
def test_control_tokens_do_not_break_a_character_apart(
    byte_level: Decode, text: str, cuts: list[int], data: st.DataObject
) -> None:
    ids = list(text.encode())
    for _ in range(data.draw(st.integers(0, 6))):
        ids.insert(data.draw(st.integers(0, len(ids))), 300)
    pieces = pushed(TextStream(byte_level), ids, cuts)
    assert "".join(pieces) == text
    assert "\ufffd" in text or "\ufffd" not in "".join(pieces)


@given(st.text(max_size=20), CUTS)
def test_characters_of_a_byte_fallback_vocabulary_come_whole(text: str, cuts: list[int]) -> None:
    assert "".join(pushed(TextStream(byte_fallback), list(text.encode()), cuts)) == text


@pytest.mark.parametrize("token", [255, 226, 128, 65, 300])
def test_no_answer_makes_decoding_it_slow(byte_level: Decode, token: int) -> None:
    decoded = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal decoded
        decoded += len(ids)
        return byte_level(ids)

    stream, ids = TextStream(decode), [token] * 2000
    pieces = [stream.push([token]) for token in ids]
    assert "".join([*pieces, stream.finish()]) == byte_level(ids)
    assert decoded < 60 * len(ids)
    assert all(pieces[9:]) or token == 300  # a few are held back, never more


def test_ids_mean_what_they_mean_after_their_neighbour() -> None:
    words = ["▁one", "▁two", "▁three"]

    def decode(ids: Sequence[int]) -> str:  # as SentencePiece does: the first space of a text is dropped
        return "".join(words[i] for i in ids).replace("▁", " ").removeprefix(" ")

    assert pushed(TextStream(decode), [0, 1, 2], [1, 1, 1]) == ["one", " two", " three", "", ""]


@given(st.text("abc", max_size=30), STOPS, CUTS)
def test_text_is_cut_before_the_stop_string_that_is_complete_first(text: str, stop: list[str], cuts: list[int]) -> None:
    ends = [(text.index(word) + len(word), text.index(word)) for word in stop if word in text]
    expected = text[: min(ends)[1]] if ends else text
    reader, given_out, position = StopFilter(stop), "", 0
    for size in [*cuts, len(text)]:
        given_out += reader.push(text[position : position + size])
        position += size
        assert expected.startswith(given_out)
    assert reader.stopped == bool(ends)
    assert given_out + reader.finish() == expected


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    reader = StopFilter(["END"])
    assert [reader.push("an EN"), reader.push("E"), reader.push("ND more")] == ["an ", "EN", ""]
    assert reader.stopped
