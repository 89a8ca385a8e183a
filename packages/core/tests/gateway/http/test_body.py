import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable, Sequence

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from leyden.core.gateway.http.asgi import ClientGone
from leyden.core.gateway.http.body import BodyLimits, accepted_encodings, read_body
from leyden.core.gateway.refusal import Refusal

JSON = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}' * 20
LIMITS = BodyLimits()
MEBI = 1 << 20

Receive = Callable[[], Awaitable[Message]]


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def zstd_without_size(data: bytes) -> bytes:
    frame = zstandard.ZstdCompressor().compressobj()
    return frame.compress(data) + frame.flush()


COMPRESS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd}


def sending(pieces: Sequence[bytes], *, hang_up: bool = False) -> Receive:
    """A client that sends `pieces`, one a message."""
    messages: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": hang_up or index < len(pieces) - 1}
        for index, piece in enumerate(pieces)
    ]
    left = iter([*messages, {"type": "http.disconnect"}])

    async def receive() -> Message:
        return next(left)

    return receive


async def read(pieces: Sequence[bytes], limits: BodyLimits = LIMITS, *, hang_up: bool = False, **headers: str) -> bytes:
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return await read_body({"headers": sent}, sending(pieces, hang_up=hang_up), limits)


async def refused(pieces: Sequence[bytes], limits: BodyLimits = LIMITS, **headers: str) -> Refusal:
    with pytest.raises(Refusal) as error:
        await read(pieces, limits, hang_up=False, **headers)
    return error.value


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_a_body_is_read_however_it_is_cut(size: int) -> None:
    assert await read(cut(JSON, size)) == JSON
    assert await read(cut(JSON, size), content_length=str(len(JSON))) == JSON
    for encoding, compress in COMPRESS.items():
        assert await read(cut(compress(JSON), size), content_encoding=encoding) == JSON
    assert await read([b""]) == b""


async def test_encodings_go_by_their_other_spellings() -> None:
    assert await read([gzip.compress(JSON)], content_encoding="X-GZip") == JSON
    assert await read([JSON], content_encoding="identity") == JSON
    assert await read([gzip.compress(JSON)], content_encoding="identity, gzip") == JSON
    assert await read([gzip.compress(b"a") + gzip.compress(b"b")], content_encoding="gzip") == b"ab"
    assert await read([zstd(b"a") + zstd_without_size(b"b")], content_encoding="zstd") == b"ab"


async def test_an_encoding_that_cannot_be_read_is_refused_with_those_that_can() -> None:
    for given_encoding in ("br", "compress", "gzip, gzip", "gzip,deflate"):
        refusal = await refused([JSON], content_encoding=given_encoding)
        assert refusal.status == 415
        assert "gzip, deflate, zstd" in str(refusal)
        assert refusal.headers == {"accept-encoding": "gzip, deflate, zstd"}


async def test_without_its_library_zstd_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    def finds_nothing(name: str) -> None: ...

    monkeypatch.setattr("importlib.util.find_spec", finds_nothing)
    assert accepted_encodings() == ("gzip", "deflate")
    assert (await refused([zstd(JSON)], content_encoding="zstd")).status == 415


async def test_a_body_larger_than_the_limit_is_refused_and_one_of_that_size_is_not() -> None:
    limits = BodyLimits(max_bytes=len(JSON), max_decoded_bytes=len(JSON))
    assert await read(cut(JSON, 100), limits) == JSON
    assert (await refused([*cut(JSON, 100), b" "], limits)).status == 413
    for encoding, compress in COMPRESS.items():
        assert await read([compress(JSON)], limits, content_encoding=encoding) == JSON
        refusal = await refused([compress(JSON + b" ")], limits, content_encoding=encoding)
        assert (refusal.status, refusal.body.code) == (413, "request_too_large")


async def test_a_body_that_says_it_is_too_large_is_not_read_at_all() -> None:
    limits = BodyLimits(max_bytes=10)
    for length in ("11", "9" * 5000):
        assert (await refused([], limits, content_length=length)).status == 413


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
async def test_a_bomb_costs_no_more_than_the_limit_and_one_piece(encoding: str) -> None:
    bomb = COMPRESS[encoding](bytes(100 * MEBI))
    limits = BodyLimits(max_decoded_bytes=MEBI)
    tracemalloc.start()
    try:
        assert (await refused([bomb], limits, content_encoding=encoding)).status == 413
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * MEBI


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
async def test_compressed_data_that_breaks_off_or_is_corrupt_is_refused(encoding: str) -> None:
    whole = COMPRESS[encoding](JSON)
    broken = [whole[:-1], whole[:5], b"", whole + b"\x00rest", JSON, whole[:12] + b"\xff\xff\xff" + whole[15:]]
    for data in broken:
        refusal = await refused(cut(data, 9) or [b""], content_encoding=encoding)
        assert refusal.status == 400


@given(data=st.binary(max_size=300), encoding=st.sampled_from(["gzip", "deflate", "zstd"]), size=st.integers(1, 50))
async def test_no_compressed_body_does_anything_but_be_read_or_refused(data: bytes, encoding: str, size: int) -> None:
    try:
        await read(cut(data, size) or [b""], content_encoding=encoding)
    except Refusal as refusal:
        assert refusal.status == 400


async def test_a_body_of_another_length_than_it_says_is_refused() -> None:
    for pieces, length in (([b"abc"], "4"), ([b"abc", b"de"], "4"), ([b"abc"], "x"), ([b"abc"], "-3"), ([b"abc"], "")):
        assert (await refused(pieces, content_length=length)).status == 400
    with pytest.raises(Refusal, match="not one number"):
        headers = [(b"content-length", b"3"), (b"content-length", b"4")]
        await read_body({"headers": headers}, sending([b"abc"]), LIMITS)


async def test_a_client_that_hangs_up_is_gone() -> None:
    for pieces in ([], [b"{"], [b"{", b""]):
        with pytest.raises(ClientGone):
            await read(pieces, hang_up=True)


async def test_a_client_that_stops_sending_is_refused() -> None:
    async def stops() -> Message:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    with pytest.raises(Refusal) as error:
        await read_body({"headers": []}, stops, BodyLimits(gap_seconds=0.01))
    assert (error.value.status, error.value.body.code) == (408, "request_timeout")
    assert error.value.headers == {"connection": "close"}


async def test_a_client_that_trickles_is_refused_in_the_end() -> None:
    async def trickles() -> Message:
        await asyncio.sleep(0.001)
        return {"type": "http.request", "body": b" ", "more_body": True}

    with pytest.raises(Refusal) as error:
        await read_body({"headers": []}, trickles, BodyLimits(seconds=0.05))
    assert error.value.status == 408


async def test_a_slow_body_whose_pieces_come_in_time_is_read() -> None:
    receive = sending([b"a"] * 5)

    async def slowly() -> Message:
        await asyncio.sleep(0.02)
        return await receive()

    assert await read_body({"headers": []}, slowly, BodyLimits(gap_seconds=5, seconds=10)) == b"aaaaa"


async def test_what_may_stand_for_megabytes_is_decompressed_by_the_callers_own_worker() -> None:
    body = bytes(range(256)) * 200
    packed, sizes = gzip.compress(body, compresslevel=0), list[int]()

    async def work(size: int, call: Callable[[], bytes]) -> bytes:
        sizes.append(size)
        return call()

    headers = [(b"content-encoding", b"gzip"), (b"content-length", str(len(packed)).encode())]
    found = await read_body({"headers": headers}, sending([packed[:100], packed[100:]]), LIMITS, work=work)
    assert found == body
    assert sizes == [LIMITS.max_decoded_bytes]
