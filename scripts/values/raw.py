"""Requests that no client of ours would make: values that MessagePack, JSON and OTLP hold, everywhere in a call."""

import json
import random
import secrets
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from leyden.core.data import semconv
from leyden.core.data.rollout import Attempt

_MSGPACK, _JSON, _PROTOBUF = "application/msgpack", "application/json", "application/x-protobuf"
_DEEP = 3000

_PACKED: Sequence[bytes] = (
    *(b"\xc0", b"\xc2", b"\xca\x7f\xc0\x00\x00", b"\xcb\x7f\xf0" + b"\0" * 6, b"\xcf" + b"\xff" * 8),
    *(b"\xd3\x80" + b"\0" * 7, b"\xa3\xff\xfe\xfd", b"\xa3\xed\xa0\x80", b"\xa3a\0b", b"\xc4\x02\xff\0"),
    *(b"\xc7\x05\x07abcde", b"\xd6\xff\xff\xff\xff\xff", b"\xc7\x0c\xff" + b"\xff" * 12, b"\xd7\xff" + b"\xff" * 8),
    *(b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\x91" * _DEEP + b"\xc0"),
    *(
        b"\x81\xa1a" * _DEEP + b"\xc0",
        b"\x81\x90\x01",
        b"\x81\xc0\x01",
        b"\x82\xa1a\x01\xa1a\x02",
        b"\xda\xff\xff" + b"x" * 0xFFFF,
    ),
    *(b"\x80", b"\x90", b"\xa0"),
)
"""Numbers at their limits, text that is no UTF-8, extensions, times that cannot be, lengths that are lies, depths."""
_WRITTEN: Sequence[str] = (
    *("null", "true", "NaN", "Infinity", "1e999", "-1e999", "1e-999", "9" * 5000, str(1 << 64), "0.1e", "-0"),
    *(r'"\ud800"', r'"\ud83d\ude00"', r'"a\u0000b"', '"\udcff"', r'"\x"', '"' + "x" * 100_000 + '"'),
    *(
        "[" * _DEEP + "]" * _DEEP,
        '{"a":' * _DEEP + "1" + "}" * _DEEP,
        '{"a": 1, "a": 2}',
        "{1: 2}",
        "[1,]",
        "",
        "[]",
        "{}",
    ),
)


class Request(NamedTuple):
    """One request."""

    path: str
    body: bytes
    kind: str
    """Its content type."""


class Raw:
    """Draws requests about an attempt; the same ones for the same seed, but for the ids of spans."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.values = 0

    def request(self, attempt: Attempt) -> Request:
        """Draw a request."""
        make: Callable[[Attempt], Request] = self._random.choice((self._packed, self._packed, self._json, self._otlp))
        return make(attempt)

    # --- MessagePack and JSON

    def _packed(self, attempt: Attempt) -> Request:
        name, fields = self._call(attempt, self._packed_value)
        body = _map([(key, _pack(value)) for key, value in fields])
        return Request(name, body, _MSGPACK)

    def _json(self, attempt: Attempt) -> Request:
        name, fields = self._call(attempt, self._written_value)
        body = _object([(key, _write(value)) for key, value in fields])
        return Request(name, body.encode("utf-8", "surrogateescape"), _JSON)

    def _call(self, attempt: Attempt, odd: Callable[[], Any]) -> tuple[str, list[tuple[str, Any]]]:
        """A method with its arguments, one or two of which are odd."""
        ids = [("rollout_id", attempt.rollout_id), ("attempt_id", attempt.attempt_id)]
        run: dict[str, Any] = {"run_id": secrets.token_hex(8), "name": "n"}
        calls: list[tuple[str, Callable[[], list[tuple[str, Any]]]]] = [
            *[("add_span", lambda: [("span", self._span(attempt, odd))])] * 6,
            *[("add_many_spans", lambda: [("spans", [self._span(attempt, odd)])])] * 3,
            ("start_rollout", lambda: [("input", odd()), ("metadata", {"a": odd()})]),
            ("enqueue_many_rollouts", lambda: [("rollouts", [{"input": odd(), "config": odd()}])]),
            ("update_attempt", lambda: [*ids, ("metadata", {"a": odd()})]),
            ("update_attempt", lambda: [*ids, ("last_heartbeat_time", odd())]),
            ("update_worker", lambda: [("worker_id", "w"), ("heartbeat_stats", odd())]),
            ("query_spans", lambda: [ids[0], ("name", odd()), ("limit", 1)]),
            ("query_rollouts", lambda: [("status_in", odd()), ("limit", 1)]),
            ("wait_for_rollouts", lambda: [("rollout_ids", odd()), ("timeout", 0.0)]),
            ("add_resources", lambda: [("resources", {"a": odd()})]),
            ("add_run", lambda: [("run", {**run, "config": {"a": odd()}})]),
            ("add_metrics", lambda: [("run_id", "run"), ("metrics", [{"step": 1, "values": {"a": odd()}}])]),
            ("together", lambda: [("a", odd())]),
        ]
        name, fields = self._random.choice(calls)
        return name, fields()

    def _span(self, attempt: Attempt, odd: Callable[[], Any]) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "rollout_id": attempt.rollout_id,
            "attempt_id": attempt.attempt_id,
            "sequence_id": 0,
            "trace_id": "1" * 32,
            "span_id": secrets.token_hex(8),
            "name": "raw",
            "start_time": 1.0,
            "attributes": {"a": odd()},
        }
        if self._random.random() < 0.5:
            places = (
                "name",
                "start_time",
                "end_time",
                "parent_id",
                "events",
                "links",
                "resource",
                "status",
                "attributes",
            )
            fields[self._random.choice(places)] = odd()
        return fields

    def _packed_value(self, left: int = 6) -> Any:
        self.values += left == 6
        draw = self._random
        what = draw.random()
        if left <= 1 or what < 0.5:
            return draw.choice(_PACKED)
        if what < 0.7:
            return _pack(
                draw.choice((draw.getrandbits(63), struct.unpack("<d", draw.randbytes(8))[0], draw.randbytes(8)))
            )
        several = [self._packed_value(left // 2) for _ in range(draw.randrange(4))]
        if draw.random() < 0.5:
            return bytes([0x90 + len(several)]) + b"".join(several)
        return bytes([0x80 + len(several)]) + b"".join(self._packed_value(1) + value for value in several)

    def _written_value(self, left: int = 6) -> "_Written":
        self.values += left == 6
        draw = self._random
        if left <= 1 or draw.random() < 0.6:
            return _Written(draw.choice(_WRITTEN))
        several = [self._written_value(left // 2) for _ in range(draw.randrange(4))]
        if draw.random() < 0.5:
            return _Written(f"[{','.join(several)}]")
        return _Written("{" + ",".join(f'"{n}": {value}' for n, value in enumerate(several)) + "}")

    # --- OTLP

    def _otlp(self, attempt: Attempt) -> Request:
        draw = self._random
        request: Any = ExportTraceServiceRequest()
        of_resource = request.resource_spans.add()
        for name, text in ((semconv.ROLLOUT_ID, attempt.rollout_id), (semconv.ATTEMPT_ID, attempt.attempt_id)):
            of_resource.resource.attributes.add(key=name).value.string_value = text
        span = of_resource.scope_spans.add().spans.add(trace_id=b"\1" * 16, span_id=secrets.token_bytes(8))
        span.name, span.status.code = draw.choice(("", "otlp", "a\0b")), draw.randrange(3)
        span.start_time_unix_nano, span.end_time_unix_nano = draw.getrandbits(64), draw.getrandbits(64)
        for _ in range(3):
            self._any_value(span.attributes.add(key=draw.choice(("a", "", semconv.PROMPT_IDS))).value, 4)
        self._any_value(span.events.add(name="e", time_unix_nano=draw.getrandbits(64)).attributes.add(key="b").value, 4)
        span.links.add(trace_id=draw.randbytes(draw.randrange(20)), span_id=draw.randbytes(3))
        self.values += 4
        body = request.SerializeToString()
        if draw.random() < 0.2:  # somewhere another byte
            place = draw.randrange(len(body))
            body = body[:place] + draw.randbytes(1) + body[place + 1 :]
        return Request("v1/traces", body, _PROTOBUF)

    def _any_value(self, value: Any, left: int) -> None:
        draw = self._random
        kind = draw.randrange(8 if left > 1 else 6)
        if kind == 0:
            value.string_value = draw.choice(("", "a\0b", "\U0001f600", "x" * 10_000))
        elif kind == 1:
            value.int_value = draw.getrandbits(64) - (1 << 63)
        elif kind == 2:
            value.double_value = struct.unpack("<d", draw.randbytes(8))[0]
        elif kind == 3:
            value.bytes_value = draw.randbytes(8)
        elif kind == 4:
            value.bool_value = True
        elif kind == 6:
            for _ in range(draw.randrange(4)):
                self._any_value(value.array_value.values.add(), left - 1)
        elif kind == 7:
            for _ in range(draw.randrange(4)):
                self._any_value(value.kvlist_value.values.add(key=draw.choice(("a", "b"))).value, left - 1)


class _Written(str):
    """JSON, as it is."""


def _pack(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if type(value) is dict:
        return _map([(key, _pack(item)) for key, item in cast("dict[str, Any]", value).items()])
    if type(value) is list:
        items = cast("list[Any]", value)
        return bytes([0x90 + len(items)]) + b"".join(map(_pack, items))
    return msgspec.msgpack.encode(value)


def _map(pairs: Sequence[tuple[str, bytes]]) -> bytes:
    return bytes([0x80 + len(pairs)]) + b"".join(msgspec.msgpack.encode(key) + value for key, value in pairs)


def _write(value: Any) -> str:
    if type(value) is _Written:
        return value
    if type(value) is dict:
        return _object([(key, _write(item)) for key, item in cast("dict[str, Any]", value).items()])
    return f"[{','.join(map(_write, cast('list[Any]', value)))}]" if type(value) is list else json.dumps(value)


def _object(pairs: Sequence[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{json.dumps(key)}: {value}" for key, value in pairs) + "}"
