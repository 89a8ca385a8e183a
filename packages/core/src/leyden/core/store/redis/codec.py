"""Codec of rows in Redis: packs rows into fields of hashes, and reads them back."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from leyden.core.store.common.rows import AttemptRow, ResourcesRow, RolloutRow, SpanRow, WorkerRow

ABSENT = ""
"""Version of an object that is not stored."""

_pack = msgspec.msgpack.encode
_unpack = msgspec.msgpack.Decoder(list[Any]).decode
_BODIES = ("input", "config", "metadata")
_STATE = tuple(name for name in RolloutRow.__struct_fields__ if name not in (*_BODIES, "rollout_id"))
_ATTEMPT = tuple(name for name in AttemptRow.__struct_fields__ if name not in ("rollout_id", "attempt_id"))
_SPAN = SpanRow.__struct_fields__[1:]
UNORDERED = -1
BETWEEN = "\0"
"""Separator between the ids of a rollout and an attempt in a worker's open attempts."""


class RolloutAtRest(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout with its attempts, as stored in one hash of Redis."""

    version: str
    """Id of the commit that wrote it last."""
    position: int
    """Position in the order of creation; below 0 until the commit that creates it."""
    row: RolloutRow
    attempts: dict[str, AttemptRow]
    """Attempts by id, in the order of creation."""
    positions: dict[str, int]
    """Positions of the attempts, like `position`."""
    counter: int = 0
    """Highest span number, reserved or stored."""
    tail: int = 0
    """Number of the span stored last, or `UNORDERED` where spans were not stored in the order of their numbers."""


def read_rollout(rollout_id: str, flat: Sequence[bytes]) -> RolloutAtRest | None:
    """Return the rollout from an answer of `HGETALL`; None where there is none."""
    if not flat:
        return None
    found = dict(zip(flat[::2], flat[1::2], strict=True))
    attempts = [
        AttemptRow(
            rollout_id=rollout_id, attempt_id=name[2:].decode(), **dict(zip(_ATTEMPT, _unpack(value), strict=True))
        )
        for name, value in found.items()
        if name.startswith(b"a:")
    ]
    attempts.sort(key=lambda row: row.sequence_id)
    bodies: dict[str, Any] = {name: found[name.encode()] for name in _BODIES}
    return RolloutAtRest(
        version=found[b"v"].decode(),
        position=int(found[b"n"]),
        row=RolloutRow(rollout_id=rollout_id, **read_state(found[b"state"]), **bodies),
        attempts={row.attempt_id: row for row in attempts},
        positions={name[2:].decode(): int(value) for name, value in found.items() if name.startswith(b"n:")},
        counter=int(found[b"counter"]),
        tail=int(found[b"tail"]),
    )


def read_state(packed: bytes) -> dict[str, Any]:
    """Return the fields of a rollout that queries may filter and sort on; an older version wrote no queue."""
    return dict(zip(_STATE, _unpack(packed), strict=False))


def row_without_bodies(rollout_id: str, packed: bytes) -> RolloutRow:
    """Return a row for filtering and sorting, without its documents."""
    return RolloutRow(rollout_id=rollout_id, **read_state(packed), input=b"", config=b"", metadata=b"")


def changed_fields(old: RolloutAtRest | None, new: RolloutAtRest) -> dict[str, bytes | str | int]:
    """Return the fields of the hash to be written; an int is a position that the commit will assign."""
    fields: dict[str, bytes | str | int] = {"v": new.version}
    if old is None:
        fields["n"] = position_argument(new.position)
    for name in _BODIES:
        if old is None or getattr(old.row, name) != getattr(new.row, name):
            fields[name] = getattr(new.row, name)
    if old is None or old.row is not new.row:
        fields["state"] = _pack([getattr(new.row, name) for name in _STATE])
    for name in ("counter", "tail"):
        if old is None or getattr(old, name) != getattr(new, name):
            fields[name] = str(getattr(new, name))
    for attempt_id, attempt in new.attempts.items():
        if old is None or old.attempts.get(attempt_id) is not attempt:
            fields[f"a:{attempt_id}"] = pack_attempt(attempt)
        if old is None or attempt_id not in old.positions:
            fields[f"n:{attempt_id}"] = position_argument(new.positions[attempt_id])
    return fields


def pack_attempt(row: AttemptRow) -> bytes:
    """Return an attempt's field as bytes."""
    return _pack([getattr(row, name) for name in _ATTEMPT])


def position_argument(number: int) -> str | int:
    """Return a position as an argument of a commit: an int is relative to the commit's first serial number."""
    return -1 - number if number < 0 else str(number)


def member(rollout: RolloutAtRest, attempt_id: str, span_id: str) -> str:
    """Return the member for a span in the set of its rollout's span ids; number 0 stands for a missing attempt."""
    attempt = rollout.attempts.get(attempt_id)
    return f"{0 if attempt is None else attempt.sequence_id}:{span_id}"


def pack_span(row: SpanRow) -> bytes:
    """Return a span as bytes, without its rollout's id."""
    return _pack(astuple(row)[1:])


def read_span(rollout_id: str, packed: bytes) -> SpanRow:
    """Return the span from its bytes."""
    return SpanRow(rollout_id=rollout_id, **dict(zip(_SPAN, _unpack(packed), strict=True)))


def pack_row(row: ResourcesRow | WorkerRow) -> bytes:
    """Return all fields as bytes."""
    return _pack(astuple(row))


def read_resources(packed: bytes) -> ResourcesRow:
    """Return the version of resources from its bytes."""
    return ResourcesRow(**dict(zip(ResourcesRow.__struct_fields__, _unpack(packed), strict=True)))


def read_worker(packed: bytes) -> WorkerRow:
    """Return the worker from its bytes."""
    return WorkerRow(**dict(zip(WorkerRow.__struct_fields__, _unpack(packed), strict=True)))
