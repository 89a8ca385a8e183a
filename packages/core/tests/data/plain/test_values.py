"""Any value as plain data: what is kept whole, what in part, and what is never called."""

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import itertools
import json
import math
import threading
import types
import uuid
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd
import pydantic
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from leyden.core.data.plain.own_methods import OwnMethods
from leyden.core.data.plain.reading import QUICK, OverLimits, ReadingLimits
from leyden.core.data.plain.values import (
    as_json,
    is_plain,
    listed,
    message_of,
    number,
    pairs_of,
    plain,
    shown,
    stack_of,
)
from leyden.core.testing.any_values import RELEASE, AnyValue, any_values
from leyden.core.testing.any_values.hostile import (
    SPOILED,
    ErrorBlocks,
    ErrorRaises,
    ItemsNeverEnd,
    KeysRaise,
    LooksRaise,
    ReprBlocks,
    ReprRaises,
)
from leyden.core.testing.any_values.records import makers

MOMENT = datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)
PROXY: Any = types.MappingProxyType({"a": 1})
HALF, OTHER_HALF = "a\ud800", "a\udfff"


class _Colour(enum.Enum):
    RED = "red"


class _Level(enum.IntEnum):
    LOW = 1


class _Pair(NamedTuple):
    left: int
    right: str


class _Struct(msgspec.Struct, tag="a"):
    held: int


class _Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    held: Any
    key: pydantic.SecretStr = pydantic.SecretStr("sk-secret")
    hidden: str = pydantic.Field("sk-secret", repr=False)


@dataclasses.dataclass
class _Data:
    held: Any
    hidden: str = dataclasses.field(default="sk-secret", repr=False)


class _Client:
    def __init__(self) -> None:
        self.api_key = "sk-secret"


WHOLE: dict[str, tuple[Any, Any]] = {
    "text that raises": (SPOILED[str]("x"), "x"),
    "numbers that raise": ([SPOILED[int](3), SPOILED[float](-0.0)], [3, -0.0]),
    "bytes that raise": ([SPOILED[bytes](b"\xff"), SPOILED[bytearray](b"a")], [b"\xff", b"a"]),
    "holders that raise": ([SPOILED[list]([1]), SPOILED[tuple]((2,)), SPOILED[dict](a=1)], [[1], [2], {"a": 1}]),
    "members": ([_Colour.RED, _Level.LOW], ["red", 1]),
    "named tuple": (_Pair(1, "b"), [1, "b"]),
    "struct": (_Struct(1), {"type": "a", "held": 1}),
    "dataclass": (_Data(1), {"held": 1}),
    "namespace": (types.SimpleNamespace(a=1), {"a": 1}),
    "mapping": (collections.UserDict(a=1), {"a": 1}),
    "chain of mappings": (collections.ChainMap({"a": 1}, {"a": 2, "b": 3}), {"a": 1, "b": 3}),
    "proxy": (types.MappingProxyType({"a": 1}), {"a": 1}),
    "views": ([{"a": 1}.keys(), {"a": 1}.items()], [["a"], [["a", 1]]]),
    "time": (datetime.datetime(2024, 1, 2), "2024-01-02T00:00:00"),
    "date and time of day": ([datetime.date(2024, 1, 2), datetime.time(1)], ["2024-01-02", "01:00:00"]),
    "time of a zone": (MOMENT, MOMENT),
    "numbers of the library": ([decimal.Decimal("1.50"), fractions.Fraction(1, 3), 1j], ["1.50", "1/3", "1j"]),
    "UUID": (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "numpy": ([np.float64(0.5), np.int8(-3), np.bool_(True), np.str_("x")], [0.5, -3, True, "x"]),
    "arrays": ([np.arange(3), np.zeros((1, 2)), np.array(2.5)], [[0, 1, 2], [[0.0, 0.0]], 2.5]),
    "tensor": (torch.tensor([[1, 2]]), [[1, 2]]),
    "table": (pd.DataFrame({"a": [1, 2]}), {"columns": ["a"], "data": [[1], [2]]}),
    "column": (pd.Series([1, 2]), [1, 2]),
    "missing": ([pd.NA, pd.NaT], [None, None]),
    "both halves of a pair": ("\ud83d" + "\ude00", "\U0001f600"),
    "error": (ValueError("bad", 1), "ValueError: ('bad', 1)"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_a_value_holds_is_kept(name: str) -> None:
    value, wanted = WHOLE[name]
    kept = plain(value)
    assert (kept.value, kept.reasons) == (wanted, [])
    assert repr(kept.value) == repr(wanted), "subclasses of plain classes are not plain"
    assert is_plain(kept.value) or name == "time of a zone"


def test_what_a_class_hides_is_not_read_unless_it_is_its_owners() -> None:
    value = [_Data(1), _Model.model_validate({"held": 2, "more": 3}), _Client(), {"key": _Client()}]
    kept = plain(value)
    assert "sk-secret" not in repr(kept)
    assert kept.value[:2] == [{"held": 1}, {"held": 2, "key": "SecretStr('**********')", "more": 3}]
    assert kept.value[2] == f"<{__name__}._Client>"
    assert plain(_Data(1), all_fields=True).value == {"held": 1, "hidden": "sk-secret"}


def test_what_is_read_later_is_not_begun() -> None:
    def lazy() -> Any:
        raise AssertionError("it was begun")
        yield

    generator, iterator = lazy(), iter([1, 2])
    kept = plain([generator, iterator])
    assert len(kept.reasons) == 2
    assert list(iterator) == [1, 2]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(any_values())
def test_any_value_becomes_plain_data_of_a_bounded_size(recipe: AnyValue) -> None:
    RELEASE.set()
    kept = plain(recipe.made())
    data = msgspec.msgpack.encode(kept.value)
    assert len(data) < 80 << 20
    assert msgspec.msgpack.encode(msgspec.msgpack.decode(data)) == data
    assert isinstance(json.loads(as_json(recipe.made()).value), (str, int, float, list, dict, type(None)))
    assert all("\n" not in reason and len(reason) < 700 for reason in kept.reasons)
    assert "\n" not in shown(recipe.made())


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(any_values())
def test_what_is_plain_is_taken_as_it_is(recipe: AnyValue) -> None:
    RELEASE.set()
    value = recipe.made()
    if is_plain(value):
        kept = plain(value)
        assert kept.reasons == [] and msgspec.msgpack.encode(kept.value) == msgspec.msgpack.encode(value)


def test_limits_hold_and_say_so() -> None:
    many = plain([[n] for n in range(50)], "list", ReadingLimits(items=10))
    assert len(many.value) == 5 and many.reasons[-1] == "list: 5 of 50 items are kept"
    long = plain(["x" * 50, "y" * 50], "list", ReadingLimits(bytes=60))
    assert long.value == ["x" * 50, "y" * 9 + "…"] and long.reasons == ["list[1]: 9 of 50 characters are kept"]
    deep: Any = "core"
    for _ in range(10):
        deep = {"in": deep}
    nested = plain(deep, "dict", ReadingLimits(depth=3))
    assert json.dumps(nested.value).count("in") == 3 and "nested deeper than 3" in nested.reasons[0]
    reasons = plain([object() for _ in range(40)], "list").reasons
    assert (len(reasons), reasons[-1]) == (17, "and 24 more")
    assert plain([SPOILED[str]("x")] * 5, "", ReadingLimits(items=3)).value == ["x", "x"]


@pytest.mark.parametrize("value", [ReprBlocks(), ErrorBlocks(), [object()] * 3000, "\ud800", ItemsNeverEnd()])
def test_on_an_event_loop_nothing_is_called_and_nothing_takes_long(value: Any) -> None:
    with pytest.raises(OverLimits):
        plain(value, "", QUICK)


def test_a_long_list_of_numbers_is_one_look_and_no_more() -> None:
    numbers = [float(n) for n in range(1_000_000)]
    assert plain({"numbers": numbers, "odd": SPOILED[str]("x")}).value == {"numbers": numbers, "odd": "x"}
    assert plain(np.zeros((300, 1000))).reasons == []
    (reason,) = plain(np.zeros((3000, 1000)), "image").reasons
    assert reason.startswith("image: the first 999996 of 3000000 numbers of an array of shape (3000, 1000)")


def test_of_a_large_array_the_first_members_are_kept_without_a_copy_of_it() -> None:
    wide = np.broadcast_to(np.arange(10), (1 << 40, 10))
    kept = plain(wide, "wide")
    assert kept.value[:12] == [*range(10), 0, 1] and len(kept.reasons) == 1
    prices = plain(np.full((1000, 1000), decimal.Decimal(1), dtype=object), "prices", ReadingLimits(items=1000))
    assert len(prices.value) < 1000 and prices.reasons == [f"prices: {len(prices.value)} of 1000000 items are kept"]


class _Says:
    def __init__(self, held: Any) -> None:
        self.held = held

    def __repr__(self) -> str:
        return f"_Says({self.held!r})"


def test_an_object_whose_text_would_be_enormous_is_not_asked() -> None:
    bomb: Any = "lol"
    for _ in range(40):
        bomb = [bomb, bomb]
    name = f"{__name__}._Says"
    assert plain(_Says([1, 2])).value == "_Says([1, 2])"
    for large in (_Says(bomb), _Says([_Says({"a": bomb})])):
        kept = plain(large, "it")
        assert kept.value == f"<{name}>"
        assert kept.reasons == [f"it: an object of type {name}, which is too large to be kept as its own text"]
    for error in (ValueError("wrong", bomb), KeyError(_Says(bomb))):
        assert len(message_of(error, 1000)) <= 1000
        assert stack_of(error).startswith(type(error).__name__)
    digits = KeyError(1 << 4_000_000)
    assert message_of(digits) == "<int of 4000001 bits>" and "KeyError" in stack_of(digits)
    try:
        raise RuntimeError("short") from ValueError(bomb)
    except RuntimeError as error:
        assert "RuntimeError: short" in stack_of(error)


def test_whatever_holds_what_is_enormous_is_not_asked_for_its_text() -> None:
    bomb: Any = "lol"
    for _ in range(40):
        bomb = [bomb, bomb]
    for make in makers():
        held = make(bomb)
        text = plain(ValueError("wrong", held)).value
        assert text.startswith("ValueError: (") and len(text) < 200_000, type(held)
        assert len(str(plain(_Says(held)).value)) < 200_000


def test_an_object_that_holds_itself_is_asked() -> None:
    held: list[Any] = [1]
    held.append(held)
    assert plain(_Says(held)).value == "_Says([1, [...]])"


def test_what_has_no_end_is_no_list_and_no_mapping() -> None:
    assert listed(itertools.count()) is None and pairs_of(ItemsNeverEnd()) is None
    assert listed(iter([1, 2])) == [1, 2] and listed({1: 2}.keys()) == [1]
    with pytest.raises(OverLimits):
        listed(iter([1, 2]), QUICK)


def test_what_is_plain_but_has_too_many_members_is_not_looked_at() -> None:
    nested = [[[1] * 30] * 30] * 30
    assert is_plain(nested) and not is_plain(nested, 20_000) and is_plain(nested, 30_000)


def test_numbers_are_of_any_kind_and_what_is_none_is_none() -> None:
    for value, wanted in ((np.float32(0.5), 0.5), (decimal.Decimal("1.5"), 1.5), (1 << 2000, math.inf), (True, 1.0)):
        assert number(value) == wanted
    no_numbers: list[Any] = [decimal.Decimal("sNaN"), "1", None, [], ReprRaises(), 1j]
    for none in no_numbers:
        assert number(none) is None


def test_a_whole_number_of_any_size_is_kept() -> None:
    for whole in (1 << 63, (1 << 64) - 1, -(1 << 63)):
        assert plain(whole) == (whole, [])
    for large in (1 << 64, -(1 << 63) - 1, 10**400, -(1 << 4_000_000)):
        kept = plain(large)
        assert int(kept.value, 0) == large if large.bit_length() > 20_000 else int(kept.value) == large
        assert f"{large.bit_length()} bits is kept as text" in kept.reasons[0]
    assert plain(1 << 4_000_000, "", ReadingLimits(bytes=1000)).value == "<int of 4000001 bits>"


def test_keys_are_text_or_whole_numbers_and_none_is_lost() -> None:
    kept = plain({None: 1, 1: 2, "1": 3, 2.5: 4, (1, 2): 5, SPOILED[int](7): 6, HALF: 7, OTHER_HALF: 8})
    assert list(kept.value.values()) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert list(kept.value) == ["null", 1, "1 (2)", "2.5", "[1, 2]", 7, "a\ufffd", "a\ufffd (2)"]


def test_what_another_thread_changes_is_read_as_it_is() -> None:
    shared: dict[Any, Any] = {"a": [SPOILED[str]("x")]}
    stop = threading.Event()

    def change() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            shared[n % 50] = [n]
            shared.pop((n + 25) % 50, None)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(300):
            assert plain(shared).value["a"] == ["x"]
            is_plain(shared)
    finally:
        stop.set()
        thread.join()


def test_a_group_says_what_the_errors_inside_it_say() -> None:
    inner = ExceptionGroup("inner", [ValueError("first"), KeyError("second")])
    said = message_of(BaseExceptionGroup("tasks", [inner, SystemExit(), ErrorRaises("x"), TypeError("last")]))
    assert said == "tasks (4 sub-exceptions): ValueError: first; KeyError: 'second'; SystemExit; and 2 more"
    assert message_of(ExceptionGroup("tasks", [ErrorRaises("x")])) == (
        "tasks (1 sub-exception): ErrorRaises: <ErrorRaises whose message cannot be read>"
    )
    doubled: Any = ValueError("once")
    for _ in range(60):
        doubled = ExceptionGroup("t", [doubled, doubled])
    assert message_of(doubled) == "t (2 sub-exceptions): ValueError: once"
    assert message_of(ExceptionGroup("g" * 5000, [ValueError("named all the same")]), 2000).endswith("the same")


def test_an_error_says_what_it_can() -> None:
    methods = OwnMethods()
    assert message_of(ValueError("plain")) == "plain"
    assert message_of(KeyError("key")) == "'key'"
    assert message_of(ErrorRaises("x")) == "<ErrorRaises whose message cannot be read>"
    assert message_of(ValueError(LooksRaise())) == "<ValueError whose message cannot be read>"
    assert message_of(ValueError("x" * 50), 10) == "x" * 10
    RELEASE.clear()
    try:
        assert message_of(ErrorBlocks(), methods=methods) == "<ErrorBlocks whose message cannot be read>"
        try:
            raise ErrorBlocks
        except ErrorBlocks as error:
            stack = stack_of(error, methods)
    finally:
        RELEASE.set()
    assert __file__ in stack and "ErrorBlocks: <ErrorBlocks whose message cannot be read>" in stack


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        *((1, 1.0), (True, 1.0), (SPOILED[float](0.5), 0.5), (_Level.LOW, 1.0), (10**400, math.inf)),
        *((decimal.Decimal("0.5"), 0.5), (fractions.Fraction(1, 2), 0.5), (torch.tensor(0.5), 0.5)),
        *((np.float32(0.5), 0.5), (np.array(0.5), 0.5)),
        *((None, None), ("1", None), ([1.0], None), (np.array([1.0]), None), (LooksRaise(), None), (1j, None)),
        *((decimal.Decimal("Infinity"), math.inf), (ReprBlocks(), None)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_number_of_any_kind_is_one(value: Any, wanted: float | None) -> None:
    assert number(value) == wanted


def test_members_and_pairs_are_those_of_the_builtin_class() -> None:
    assert listed(SPOILED[list]([1, 2])) == [1, 2] and listed(n for n in range(2)) == [0, 1]
    assert listed("text") is None and listed(LooksRaise()) is None and listed(5) is None
    assert pairs_of(SPOILED[dict](a=1)) == [("a", 1)] and pairs_of(PROXY) is None
    assert pairs_of(collections.UserDict(a=1)) == [("a", 1)] and pairs_of(KeysRaise()) is None
