"""Counting what bodies hold agrees with what is in them, to the last value."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from leyden.core.store.http.body_counting import (
    json_values,
    message_fields,
    msgpack_length,
    msgpack_values,
    protobuf_fields,
    protobuf_messages,
)

MOST = 10**9
SIZES = st.sampled_from([0, 1, 15, 16, 31, 32, 255, 256, 65_535, 65_536])
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(allow_nan=False),
    st.integers(-(2**63), 2**64 - 1),
    SIZES.map(lambda size: "x" * size),
    SIZES.map(bytes),
    st.sampled_from([1, 2, 3, 4, 8, 16, 17, 256, 65_536]).map(lambda size: msgspec.msgpack.Ext(1, bytes(size))),
    SIZES.map(lambda size: [1] * size),
    SIZES.map(lambda size: {str(n): None for n in range(size)}),
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner), max_leaves=20
)
json_leaves = st.none() | st.booleans() | st.integers() | st.text(alphabet='a,:[]{}"\\')
json_bodies = st.recursive(json_leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text('a,:{"\\'), inner))


def count(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(count(key) + count(item) for key, item in value.items())  # pyright: ignore[reportUnknownVariableType]
    return 1 + sum(map(count, value)) if isinstance(value, list) else 1  # pyright: ignore[reportUnknownArgumentType]


@given(values)
def test_values_of_messagepack(value: Any) -> None:
    body, there = msgspec.msgpack.encode(value), count(value)
    assert msgpack_values(body, MOST) == msgpack_values(body, there) == there
    assert msgpack_values(body, there - 1) > there - 1
    for end in range(0, len(body), max(len(body) // 7, 1)):
        assert msgpack_values(body[:end], there) <= there + 1


def test_a_list_counts_as_soon_as_it_says_how_long_it_is() -> None:
    assert msgpack_values(b"\xdd" + (2**32 - 1).to_bytes(4, "big"), 1000) > 1000
    assert msgpack_values(b"\xdf" + (2**32 - 1).to_bytes(4, "big"), 1000) > 1000


@pytest.mark.parametrize("items", [0, 1, 15, 16, 65_535, 65_536])
def test_length_of_a_list(items: int) -> None:
    assert msgpack_length(msgspec.msgpack.encode([None] * items)) == items


@pytest.mark.parametrize("body", [b"", b"\x80", b"\x01", b"\xa1x", b"\xdf\x00\x00\x00\x01"])
def test_what_is_no_list_has_no_length(body: bytes) -> None:
    assert msgpack_length(body) is None


def marks(value: Any) -> int:
    """Brackets, colons and commas that a value is written with."""
    if isinstance(value, dict):
        return 1 + len(value) + max(len(value) - 1, 0) + sum(map(marks, value.values()))  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, list):
        return 1 + max(len(value) - 1, 0) + sum(map(marks, value))  # pyright: ignore[reportUnknownArgumentType]
    return 0


@given(json_bodies)
def test_values_of_json(value: Any) -> None:
    body, there = msgspec.json.encode(value), marks(value)
    found = json_values(body, there)
    assert found == there, body
    assert there == 0 or json_values(body, there - 1) == there


@pytest.mark.parametrize("body", [b'"' + b"\\" * 100_000, b'"' + b"x" * 100_000, b'"' * 99_999, b'["x' * 10_000])
def test_json_that_breaks_off_is_read_once(body: bytes) -> None:
    assert json_values(body, 0) <= 1
    assert json_values(b"," + body, MOST) <= 1 + len(body)


def request_of(spans: int, attributes: int) -> bytes:
    request: Any = ExportTraceServiceRequest()
    for _ in range(2):
        scoped = request.resource_spans.add().scope_spans.add()
        for _ in range(spans):
            span = scoped.spans.add(name="x" * 200, end_time_unix_nano=2**40)
            for _ in range(attributes):
                span.attributes.add(key="k").value.array_value.values.add(double_value=1.0)
    return request.SerializeToString()


@pytest.mark.parametrize(("spans", "attributes"), [(0, 0), (1, 0), (3, 2), (200, 1)])
def test_spans_and_fields_of_protobuf(spans: int, attributes: int) -> None:
    body, messages = request_of(spans, attributes), message_fields(ExportTraceServiceRequest.DESCRIPTOR)
    fields = 2 * (2 + spans * (3 + attributes * 5))  # of an attribute itself, key, value, array, item, number: one more
    fields += 2 * spans * attributes
    assert protobuf_messages(body, (1, 2, 2), 2 * spans) == 2 * spans
    assert protobuf_fields(body, messages, MOST) == protobuf_fields(body, messages, fields) == fields
    assert protobuf_fields(body, messages, fields - 1) == fields
    if spans:
        assert protobuf_messages(body, (1, 2, 2), 2 * spans - 1) == 2 * spans


@given(st.binary(max_size=300), st.integers(0, 300))
def test_any_bytes_are_counted(noise: bytes, cut: int) -> None:
    messages = message_fields(ExportTraceServiceRequest.DESCRIPTOR)
    for body in (noise, request_of(2, 1)[:cut] + noise):
        assert 0 <= protobuf_fields(body, messages, MOST) <= len(body)
        assert 0 <= protobuf_messages(body, (1, 2, 2), MOST) <= len(body)
        assert msgpack_values(body, len(body)) >= 1
        assert 0 <= json_values(body, MOST) <= len(body)
