import random

import pytest

from leyden.core.masking import remember_secret
from leyden.core.masking.lines import LONGEST_LINE, OVERLAP, LineMasker

KEY = b"ghp_0123456789abcdefABCDEF0123456789"
VALUE = "battery-staple-9"
BODY = b"0123456789abcdefABCDEF0123456789"
BLOCK = b"-----BEGIN PRIVATE KEY-----\n" + b"\n".join([BODY] * 20) + b"\n-----END PRIVATE KEY-----\n"


def masked(printed: bytes, size: int) -> bytes:
    """What is returned of `printed` when it comes in pieces of `size`."""
    masker = LineMasker()
    lines = b"".join(masker.feed(printed[at : at + size]) for at in range(0, len(printed), size))
    return lines + masker.close()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_lines_are_masked_whatever_pieces_they_come_in(size: int) -> None:
    remember_secret(VALUE)
    printed = b"one %s\r\ntwo %s\x1b[2J\xff\n\nsk\xc3\xa9 three\nlast %s" % (KEY, VALUE.encode(), KEY)
    assert masked(printed, size) == b"one ghp_***\ntwo ***\\x1b[2J\\xff\n\nsk\xc3\xa9 three\nlast ghp_***\n"


@pytest.mark.parametrize("size", [1, 10, 33, 4096])
def test_a_private_key_is_masked_though_its_lines_come_one_by_one(size: int) -> None:
    lines = masked(b"before\n" + BLOCK + b"after\n", size)
    assert lines == b"before\n-----BEGIN PRIVATE KEY-----***\n-----END PRIVATE KEY-----\nafter\n"


@pytest.mark.parametrize("size", [10, 4096])
def test_a_private_key_with_fields_of_its_own_is_masked_too(size: int) -> None:
    fields = b"-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0123456789ABCDEF\n\n"
    lines = masked(BLOCK.replace(b"-----\n", fields, 1), size)
    assert lines == b"-----BEGIN PRIVATE KEY-----***\n-----END PRIVATE KEY-----\n"


def test_what_only_begins_like_a_private_key_does_not_wait() -> None:
    masker = LineMasker()
    assert masker.feed(b"-----BEGIN PRIVATE KEY-----\n") == b""
    assert masker.feed(b"it is not here\n") == b"-----BEGIN PRIVATE KEY-----\nit is not here\n"


def test_a_secret_of_several_lines_is_masked_line_by_line() -> None:
    remember_secret("first-line-of-it-1\nand-the-second-one-2\n")
    assert masked(b"<first-line-of-it-1>\n<and-the-second-one-2>\n", 7) == b"<***>\n<***>\n"


@pytest.mark.parametrize("filler", [b"x", b"x ", b"\xc3\xa9", b"lots of words, "])
def test_a_secret_across_the_cut_of_a_long_line_is_found(filler: bytes) -> None:
    cut = LONGEST_LINE - OVERLAP
    for before in (cut - 60, cut - 20, cut, LONGEST_LINE - 20, LONGEST_LINE):
        start = filler * (before // len(filler))
        lines = masked(start + b" " + KEY + b" " + filler * 1000 + b"\n", 1 << 16)
        assert b"ghp_***" in lines
        assert BODY not in lines
        assert not any(BODY[at : at + 8] in lines for at in range(len(BODY) - 8))
        assert lines.replace(b"\n", b"") == start + b" ghp_*** " + filler * 1000


def test_a_secret_that_is_longer_than_a_line_may_be_is_left_out() -> None:
    random.seed(1)
    secret = b"".join(random.choices([b"a", b"B", b"7", b"z", b"Q"], k=3 * LONGEST_LINE))
    lines = masked(b"key sk-proj-" + secret + b" end\nnext\n", 1 << 16)
    assert lines.startswith(b"key \nsk-***\n")
    assert lines.endswith(b" end\nnext\n")
    assert len(lines) < 100


def test_a_long_line_without_secrets_loses_nothing() -> None:
    printed = b"0123456789 " * (LONGEST_LINE // 5)
    lines = masked(printed + b"\n", 1 << 16)
    assert lines.replace(b"\n", b"") == printed
    assert lines.count(b"\n") > 1
