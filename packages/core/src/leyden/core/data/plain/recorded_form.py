"""Recorded form: a value as JSON that restores plain data exactly, and objects by their declared fields.

Text, numbers, None, bool, lists, and dicts with text as keys are written as themselves. Any other value is a dict with
the key `$`, its kind: `{"$": "tuple", "of": [...]}`. An object of a subclass of a plain class (a named tuple) has its
plain value, its class, and the names of what the class adds. An object of a class with declared fields
(dataclass, attrs, pydantic, msgspec) has its class, the bases of its class, and its fields; so has a member of an
enumeration. Any other object has its class only: its attributes may hold secrets that its text does not show. No method
that a value's own class defines is called. `recorded_object` restores the form.
"""

import collections
import json
import math
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import msgspec

from leyden.core.data.encoding.text import is_well_formed
from leyden.core.data.plain.class_members import class_of, fields_of, lineage
from leyden.core.data.plain.exact_kinds import EXACT_KINDS, numpy_scalar
from leyden.core.data.plain.reading import OverLimits
from leyden.core.data.plain.recorded_class import ClassRecord, class_record
from leyden.core.data.plain.values import is_a
from leyden.core.masking import is_secret_name, mask_text

KIND = "$"
"""Key that marks a value which JSON does not have."""
FACTORIES: dict[str, Any] = {
    "none": None,
    **{kind.__name__: kind for kind in (bool, int, float, str, list, dict, set, tuple)},
}
"""Factories of a `defaultdict` that are kept, by name."""
OTHER_FACTORY = "other"
_Dict: Any = dict
_OrderedDict: Any = collections.OrderedDict
_DefaultDict: Any = collections.defaultdict
_SPECIAL_CONTAINERS = (collections.OrderedDict, collections.defaultdict, collections.Counter, collections.deque)
_CONTAINERS: tuple[Any, ...] = (list, dict, tuple, set, frozenset, *_SPECIAL_CONTAINERS)
_EXACT = {id(exact.kind): exact for exact in EXACT_KINDS.values()}


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
        if value is None or kind is bool:
            return value
        written = self._plain(kind, value, depth)
        if written is not None:
            return written
        record = class_record(kind)
        return self._object(record, value, depth) if record.base is None else self._of_subclass(record, value, depth)

    def _plain(self, kind: Any, value: Any, depth: int) -> Any:
        """Write a value of a class that is kept exactly, with the methods of `kind`; None for any other class.

        `value` may be of a subclass of `kind`.
        """
        # Compared one by one: a set would hash the class, whose metaclass may define its own `__hash__`.
        if kind is str:
            return self._text(str.__str__(value))
        if kind is int:
            return self._whole(int.__int__(value))
        if kind is float:
            number = float.__float__(value)
            return number if math.isfinite(number) else {KIND: "float", "of": str(number)}
        if any(kind is container for container in _CONTAINERS):
            return self._container(kind, value, depth)
        if (name := numpy_scalar(kind)) is not None:
            numpy: Any = sys.modules["numpy"]
            return {KIND: "numpy", "type": name, "of": self.write(numpy.generic.item(value), depth)}
        exact = _EXACT.get(id(kind))
        if exact is None:
            return None
        held = exact.write(bytes.__getitem__(value, slice(None)) if kind is bytes else value)
        return None if held is None else {KIND: exact.kind.__name__, "of": self.write(held, depth)}

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

    def _container(self, kind: Any, value: Any, depth: int) -> Any:
        if id(value) in self._open:
            raise _NotKept("it contains itself")
        self._open.add(id(value))
        try:
            if any(base is dict for base in lineage(kind)):
                return self._mapping(kind, value, depth)
            members = [self.write(member, depth + 1) for member in kind.__iter__(value)]
        finally:
            self._open.discard(id(value))
        if kind is collections.deque:
            return {KIND: "deque", "of": members, "most": value.maxlen}
        return members if kind is list else {KIND: kind.__name__, "of": members}

    def _mapping(self, kind: type[Any], value: Any, depth: int) -> Any:
        pairs: Iterable[tuple[Any, Any]] = _Dict.items(value)
        if kind is collections.OrderedDict:  # its own order differs from that of the dict after `move_to_end`
            held = {id(key): each for key, each in pairs}
            pairs = [(key, held[id(key)]) for key in _OrderedDict.__iter__(value)]
        written = self._dict(pairs, depth)
        if kind is dict:
            return written
        if kind is not collections.defaultdict:
            return {KIND: kind.__name__, "of": written}
        factory = _DefaultDict.default_factory.__get__(value)
        name = next((name for name, one in FACTORIES.items() if one is factory), OTHER_FACTORY)
        return {KIND: kind.__name__, "of": written, "factory": name}

    def _dict(self, pairs: Iterable[tuple[Any, Any]], depth: int) -> Any:
        if all(type(key) is str and not key.startswith(KIND) for key, _ in pairs):
            return {self._text(key): self._named(key, member, depth) for key, member in pairs}
        written = [[self.write(key, depth + 1), self._named(key, each, depth)] for key, each in pairs]
        return {KIND: "dict", "of": written}

    def _named(self, name: Any, value: Any, depth: int) -> Any:
        """Write the value of a key; text under the name of a secret that also looks like one is left out."""
        text = self._secret_text(name, value)
        if text is not None and mask_text(text) != text:
            return {KIND: "secret", "of": str.__str__(name)}
        return self.write(value, depth + 1)

    def _field(self, name: str, value: Any, depth: int) -> Any:
        """Write the value of an object's field; text under the name of a secret is left out."""
        is_secret = self._secret_text(name, value) is not None
        return {KIND: "secret", "of": name} if is_secret else self.write(value, depth + 1)

    def _secret_text(self, name: Any, value: Any) -> str | None:
        """Return the text under the name of a secret; None for any other value or name."""
        if self._secrets or not is_a(value, str) or not is_a(name, str):
            return None
        return str.__str__(value) if is_secret_name(str.__str__(name)) else None

    def _of_subclass(self, record: ClassRecord, value: Any, depth: int) -> dict[str, Any]:
        """Write an object of a subclass of a plain class: its plain value, and what else the class has."""
        assert record.base is not None
        written: dict[str, Any] = {KIND: "subclass", "class": self._class(record)}
        if isinstance(written["class"], list):
            self._bytes -= sum(map(len, record.own))
            written |= {"own": record.own, "items": record.items}
        attributes = fields_of(value)
        if record.is_enum:
            written["fields"] = self._enum_fields(attributes, depth)
        if any(not hasattr(record.base, name) for name in attributes):
            written["attributes"] = True
        return {**written, "of": self._plain(record.base, value, depth)}

    def _enum_fields(self, attributes: dict[str, Any], depth: int) -> dict[str, Any]:
        return {name: self.write(attributes[f"_{name}_"], depth + 1) for name in ("name", "value")}

    def _object(self, record: ClassRecord, value: Any, depth: int) -> dict[str, Any]:
        known = self._numbers.get(id(value))
        if known is not None:
            return {KIND: "ref", "of": known[0]}
        number = len(self._numbers)
        self._numbers[id(value)] = (number, value)
        written: dict[str, Any] = {KIND: "object", "n": number, "of": self._class(record)}
        if record.has_own_truth:
            written["truth"] = "own"
        if record.is_enum:
            written["fields"] = self._enum_fields(fields_of(value), depth)
        elif record.fields is not None:
            held = _held(value, record.fields)
            written["fields"] = {self._text(name): self._field(name, each, depth) for name, each in held.items()}
        return written

    def _class(self, record: ClassRecord) -> list[str] | int:
        """Return the names of a class and its bases, nearest first; its number where they are written already."""
        known = self._classes.get(id(record.kind))
        if known is not None:
            return known
        self._classes[id(record.kind)] = len(self._classes)
        self._bytes -= sum(map(len, record.names))
        return record.names


def _held(value: Any, names: list[str]) -> dict[str, Any]:
    """Return the values of the fields that the object has, and pydantic's extra fields."""
    held = fields_of(value)
    found = {name: held[name] for name in names if name in held}
    extra = held.get("__pydantic_extra__")
    return found | (cast("dict[str, Any]", extra) if type(extra) is dict else {})
