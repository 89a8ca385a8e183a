"""Recorded form: a value as JSON that restores plain data exactly, and objects by their declared fields.

Text, numbers, None, bool, lists, and dicts with text as keys are written as themselves. Any other value is a dict with
the key `$`, its kind: `{"$": "tuple", "of": [...]}`. An object of a class with declared fields (dataclass, attrs,
pydantic, msgspec) has its class, the bases of its class, and its fields. Any other object has its class only: its
attributes may hold secrets that its text does not show. No method of a value is called. `recorded_object` restores the
form.
"""

import base64
import datetime
import decimal
import json
import math
import uuid
from typing import Any, NamedTuple, cast

import msgspec

from leyden.core.data.encoding.text import is_well_formed
from leyden.core.data.plain.class_members import class_of, fields_of, lineage, members_of
from leyden.core.data.plain.own_methods import full_name
from leyden.core.data.plain.reading import OverLimits
from leyden.core.data.plain.record_kinds import declared_fields
from leyden.core.masking import is_secret_name, mask_text

KIND = "$"
"""Key that marks a value which JSON does not have."""


class FormLimits(msgspec.Struct, frozen=True):
    """Limits of one recorded form. A value that exceeds them has none."""

    values: int = 20_000
    """Largest number of values in it."""
    bytes: int = 256 << 10
    """Largest size of its texts, and of the JSON."""
    depth: int = 60
    raises: bool = False
    """Whether to raise `OverLimits` for a value that exceeds them."""


FULL_FORM = FormLimits()
QUICK_FORM = FormLimits(values=500, bytes=64 << 10, raises=True)
"""Limits on an event loop: about a millisecond."""


class RecordedForm(NamedTuple):
    """Recorded form of a value."""

    text: str | None
    """JSON; None where the value has no recorded form."""
    reason: str = ""
    """Why it has none."""


class _NotKept(Exception):
    """The value has no recorded form; the text is the reason."""


def recorded_form(value: object, limits: FormLimits = FULL_FORM, *, secrets: bool = False) -> RecordedForm:
    """Return the recorded form of `value`, or why it has none.

    Leaves out texts that seem to be secrets, unless `secrets` is set: fields with the name of a secret, and values of
    dicts that also look like one.

    Raises OverLimits where `limits` request that and the value exceeds them.
    """
    writer = _Writer(limits, secrets=secrets)
    try:
        text = json.dumps(writer.write(value, 0), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        if len(text) > limits.bytes:
            raise OverLimits
    except OverLimits:
        if limits.raises:
            raise
        return RecordedForm(None, f"it has more than {limits.values:,} values or {limits.bytes >> 10} KiB")
    except _NotKept as why:
        return RecordedForm(None, str(why))
    except Exception as error:  # for example an object that another thread changes meanwhile
        return RecordedForm(None, f"it cannot be read: {type(error).__name__}")
    return RecordedForm(text)


class _Writer:
    def __init__(self, limits: FormLimits, *, secrets: bool) -> None:
        self._secrets = secrets
        self._values, self._bytes, self._depth = limits.values, limits.bytes, limits.depth
        self._open: set[int] = set()
        self._numbers: dict[int, tuple[int, object]] = {}
        """Objects that are written already, with their numbers, by their ids."""
        self._classes: dict[int, int] = {}
        """Numbers of the classes of these objects, by their ids."""

    def write(self, value: Any, depth: int) -> Any:
        self._values -= 1
        if self._values < 0 or depth > self._depth:
            raise OverLimits
        kind = class_of(value)
        # Compared one by one: a set would hash the class, whose metaclass may define its own `__hash__`.
        if value is None or kind is bool:
            return value
        if kind is str:
            return self._text(value)
        if kind is int:
            return self._whole(value)
        if kind is float:
            return value if math.isfinite(value) else {KIND: "float", "of": str(value)}
        if kind is list or kind is dict or kind is tuple or kind is set or kind is frozenset:
            return self._container(kind, value, depth)
        scalar = self._scalar(kind, value)
        return self._object(kind, value, depth) if scalar is None else scalar

    def _text(self, text: str) -> str:
        if not is_well_formed(text):
            raise _NotKept("a text in it has half of a surrogate pair, which is not a character")
        self._bytes -= len(text)
        if self._bytes < 0:
            raise OverLimits
        return text

    def _whole(self, number: int) -> int:
        if number.bit_length() > 10_000:
            raise _NotKept("it has a whole number of more than 10,000 bits")
        return number

    def _scalar(self, kind: Any, value: Any) -> dict[str, Any] | None:
        if kind is bytes:
            return {KIND: "bytes", "of": self._text(base64.b64encode(value).decode())}
        if kind is decimal.Decimal or kind is uuid.UUID:
            return {KIND: kind.__name__, "of": self._text(str(value))}
        if kind is datetime.date or (kind is datetime.datetime and _has_plain_zone(value)):
            return {KIND: kind.__name__, "of": value.isoformat()}
        return None

    def _container(self, kind: Any, value: Any, depth: int) -> Any:
        if id(value) in self._open:
            raise _NotKept("it contains itself")
        self._open.add(id(value))
        try:
            if kind is dict:
                return self._dict(value, depth)
            members = [self.write(member, depth + 1) for member in value]
        finally:
            self._open.discard(id(value))
        return members if kind is list else {KIND: kind.__name__, "of": members}

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        if all(type(key) is str and not key.startswith(KIND) for key in value):
            return {self._text(key): self._named(key, member, depth) for key, member in value.items()}
        pairs = [[self.write(key, depth + 1), self._named(key, each, depth)] for key, each in value.items()]
        return {KIND: "dict", "of": pairs}

    def _named(self, name: Any, value: Any, depth: int) -> Any:
        """Write the value of a key; text under the name of a secret that also looks like one is left out."""
        if self._may_be_secret(name, value) and mask_text(value) != value:
            return {KIND: "secret", "of": name}
        return self.write(value, depth + 1)

    def _field(self, name: str, value: Any, depth: int) -> Any:
        """Write the value of an object's field; text under the name of a secret is left out."""
        return {KIND: "secret", "of": name} if self._may_be_secret(name, value) else self.write(value, depth + 1)

    def _may_be_secret(self, name: Any, value: Any) -> bool:
        return not self._secrets and type(value) is str and type(name) is str and is_secret_name(name)

    def _object(self, kind: type[Any], value: Any, depth: int) -> dict[str, Any]:
        known = self._numbers.get(id(value))
        if known is not None:
            return {KIND: "ref", "of": known[0]}
        number = len(self._numbers)
        self._numbers[id(value)] = (number, value)
        record = _class_record(kind)
        written: dict[str, Any] = {KIND: "object", "n": number, "of": self._class(record)}
        if record.has_own_truth:
            written["truth"] = "own"
        if record.fields is not None:
            held = _held(value, record.fields)
            written["fields"] = {self._text(name): self._field(name, each, depth) for name, each in held.items()}
        return written

    def _class(self, record: "_ClassRecord") -> list[str] | int:
        """Return the names of a class and its bases, nearest first; its number where they are written already."""
        known = self._classes.get(id(record.kind))
        if known is not None:
            return known
        self._classes[id(record.kind)] = len(self._classes)
        self._bytes -= sum(map(len, record.names))
        return record.names


class _ClassRecord(NamedTuple):
    """What the recorded form of an object needs of its class."""

    kind: type[Any]
    names: list[str]
    """Names of the class and its bases, nearest first, without `object`."""
    fields: list[str] | None
    """Declared fields that the class's `repr` shows; None for a class without declared fields."""
    has_own_truth: bool
    """Whether an object may count as false."""


_MOST_KNOWN = 4096
_known: dict[int, _ClassRecord] = {}
"""Records by the class's id: a metaclass may have a `__hash__` that raises."""


def _class_record(kind: type[Any]) -> _ClassRecord:
    found = _known.get(id(kind))
    if found is not None and found.kind is kind:
        return found
    bases = [base for base in lineage(kind) if base is not object]
    made = _ClassRecord(
        kind=kind,
        names=[full_name(base) for base in bases],
        fields=_declared(kind),
        has_own_truth=any("__bool__" in members_of(base) or "__len__" in members_of(base) for base in bases),
    )
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[id(kind)] = made
    return made


def _declared(kind: type[Any]) -> list[str] | None:
    if any(base in (dict, list, str, int, float, bytes, set, tuple, type) for base in lineage(kind)):
        return None  # it may hold more than its fields
    if issubclass(kind, msgspec.Struct):
        return list(cast("Any", kind).__struct_fields__)
    shown, hidden = declared_fields(kind)
    return shown if shown or hidden else None


def _held(value: Any, names: list[str]) -> dict[str, Any]:
    """Return the values of the fields that the object has, and pydantic's extra fields."""
    held = fields_of(value)
    found = {name: held[name] for name in names if name in held}
    extra = held.get("__pydantic_extra__")
    return found | (cast("dict[str, Any]", extra) if type(extra) is dict else {})


def _has_plain_zone(value: datetime.datetime) -> bool:
    return value.tzinfo is None or type(value.tzinfo) is datetime.timezone
