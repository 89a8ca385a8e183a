import collections
import copy
import dataclasses
import datetime
import decimal
import enum
import json
import math
import pathlib
import sys
import types
import uuid
import zipfile
import zoneinfo
from typing import Any, NamedTuple

import msgspec
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from leyden.core.data.plain.reading import OverLimits
from leyden.core.data.plain.recorded_form import FormLimits, recorded_form
from leyden.core.data.plain.recorded_object import NotRecorded, Restored

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"))
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.dates()
    | st.datetimes(timezones=st.none() | st.just(datetime.UTC))
    | st.times(timezones=st.none() | st.just(datetime.UTC))
    | st.timedeltas()
    | st.complex_numbers(allow_nan=False)
    | st.fractions()
    | st.binary().map(bytearray)
    | st.builds(range, st.integers(), st.integers(), st.integers(1))
    | st.sampled_from([numpy.float64(0.1), numpy.float32(0.1), numpy.int64(3), numpy.bool_(True), numpy.str_("x")])
    | st.sampled_from([pathlib.PurePosixPath("/a/b"), pathlib.PureWindowsPath("c:/a")])
)
HASHABLE = st.integers() | st.text(st.characters(codec="utf-8"), max_size=5) | st.tuples(st.booleans(), st.none())
PLAIN = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(HASHABLE, inner, max_size=4)
        | st.dictionaries(st.sampled_from(["$", "$x", "of", "n", "a"]), inner, max_size=4)
        | st.frozensets(HASHABLE, max_size=4)
        | st.sets(HASHABLE, max_size=4)
        | st.lists(inner, max_size=4).map(lambda members: collections.deque(members, 4))
        | st.dictionaries(HASHABLE, inner, max_size=4).map(collections.OrderedDict)
        | st.dictionaries(HASHABLE, inner, max_size=4).map(lambda pairs: collections.defaultdict(list, pairs))
        | st.lists(HASHABLE, max_size=4).map(collections.Counter)
    ),
    max_leaves=12,
)


def form_of(value: object, **given: Any) -> str:
    form = recorded_form(value, **given)
    assert form.text is not None, form.reason
    return form.text


def restored(value: object) -> Restored:
    return Restored(form_of(value))


_CONTAINERS: tuple[Any, ...] = (dict, list, tuple, collections.deque, collections.OrderedDict, collections.defaultdict)


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types at every level."""
    if type(one) is not type(other):
        return False
    if type(one) in _CONTAINERS:
        mine, others = (list(each.items() if hasattr(each, "items") else each) for each in (one, other))
        return len(mine) == len(others) and all(same(*pair) for pair in zip(mine, others, strict=True))
    return bool(one == other)


@given(PLAIN)
def test_plain_data_is_restored_exactly(value: Any) -> None:
    found = restored(value)
    assert same(found.value, value)
    assert found.refused == []


def test_floats_that_json_lacks_are_restored() -> None:
    found = restored([math.inf, -math.inf, math.nan]).value
    assert found[:2] == [math.inf, -math.inf]
    assert math.isnan(found[2])


class Message(BaseModel):
    content: str
    key: str = "sk-1"
    hidden: str = Field(default="h", repr=False)

    @property
    def shout(self) -> str:
        return self.content.upper()

    def times(self, count: int) -> str:
        return self.content * count


@dataclasses.dataclass
class Run:
    messages: list[Message]
    count: int = 1


class Box:
    def __init__(self) -> None:
        self.text = "inside"

    def __repr__(self) -> str:
        raise AssertionError("no method of a value is called")


class Struct(msgspec.Struct):
    number: int


def test_objects_have_their_declared_fields_and_their_class() -> None:
    found = restored({"run": Run([Message(content="hi")]), "struct": Struct(4)})
    run = found.value["run"]
    assert (run.messages[0].content, run.count, found.value["struct"].number) == ("hi", 1, 4)
    assert isinstance(run, Run)
    assert isinstance(run.messages[0], BaseModel)
    assert not isinstance(run, str | dict)
    assert type(run).__name__ == "Run"
    assert run
    assert (run.messages[0].shout, run.messages[0].times(2)) == ("HI", "hihi")
    assert found.refused == []


def test_one_object_in_two_places_is_one_object() -> None:
    message = Message(content="hi")
    found = restored([message, message, Message(content="hi")]).value
    assert found[0] is found[1]
    assert found[0] is not found[2]


def test_what_was_not_recorded_is_refused_and_noted() -> None:
    found = restored({"box": Box(), "message": Message(content="hi")})
    box, message = found.value["box"], found.value["message"]
    assert getattr_or_none(box) is None
    for read in (
        lambda: str(box),
        lambda: box == "inside",
        lambda: message.hidden,
        lambda: message.key + "x",
        lambda: isinstance(message.key, str),
    ):
        with pytest.raises(NotRecorded):
            read()
    assert len(found.refused) == 6
    assert "Box; the record has its text only, and 'text' was read" in found.refused[0]
    assert "'key' is not recorded: it has a secret's name" in found.refused[4]


def getattr_or_none(box: Any) -> Any:
    try:
        return box.text
    except Exception:  # as a careless reward does
        return None


def test_a_class_that_is_not_loaded_answers_with_the_nearest_base_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("not_loaded_later")
    exec(
        "from dataclasses import dataclass\n@dataclass\nclass Own:\n    a: int\n    def f(self): return 1", vars(module)
    )
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "not_loaded_later", module)
        vars(module)["Own"].__module__ = "not_loaded_later"
        form = form_of(vars(module)["Own"](a=3))
    found = Restored(form)
    assert found.value.a == 3
    assert not isinstance(found.value, str | Run)
    with pytest.raises(NotRecorded, match="work if the reward's file imports it"):
        found.value.f()


class Loud(str):
    __slots__ = ("volume",)

    def shout(self) -> str:
        return self.upper()

    def __len__(self) -> int:
        raise AssertionError("no method of a value is called")


class Plain(str):
    __slots__ = ()


class State(enum.StrEnum):
    DONE = "done"


class Step(enum.Enum):
    FIRST = (1, "one")


class Point(NamedTuple):
    x: int
    y: int

    def norm(self) -> int:
        return self.x + self.y


class Table(dict[str, int]):
    def total(self) -> int:
        return sum(self.values())


def test_objects_of_subclasses_have_their_plain_value() -> None:
    values = [Plain("abc"), Table(a=1), Point(1, 2), type("Ids", (list,), {})([1]), type("Big", (int,), {})(4)]
    found = restored(values)
    text, table, point, ids, number = found.value
    assert (text, table, point, ids, number) == tuple(values)
    assert (len(text), text.upper(), f"{text}!", hasattr(text, "content")) == (3, "ABC", "abc!", False)
    assert (json.dumps([text, table, ids]), number + 1) == ('["abc", {"a": 1}, [1]]', 5)
    assert (point.x, point[1], point.norm(), point._asdict(), table.total()) == (1, 2, 3, {"x": 1, "y": 2}, 1)
    assert (isinstance(text, Plain), isinstance(text, int), isinstance(table, Table | str)) == (True, False, True)
    assert copy.deepcopy(found.value) == values
    assert found.refused == []


def test_what_a_subclass_adds_or_defines_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loud = Loud("abc")
    loud.volume = 3
    form = form_of([loud, Point(1, 2)])
    monkeypatch.delattr(sys.modules[__name__], "Loud")
    monkeypatch.delattr(sys.modules[__name__], "Point")
    found = Restored(form)
    text, point = found.value
    assert (text, text.upper(), point.x, point) == ("abc", "ABC", 1, (1, 2))
    assert found.refused == []
    for read in (
        lambda: len(text),
        lambda: text.shout(),
        lambda: text.volume,
        lambda: point.norm(),
        lambda: repr(point),
    ):
        with pytest.raises(NotRecorded):
            read()
    assert len(found.refused) == 5
    assert "Loud object has its value as str only, and '__len__' was read; methods of" in found.refused[0]


def test_members_of_enumerations_are_themselves_or_have_their_name_and_value(monkeypatch: pytest.MonkeyPatch) -> None:
    form = form_of({"state": State.DONE, "step": Step.FIRST})
    assert [Restored(form).value[key] for key in ("state", "step")] == [State.DONE, Step.FIRST]
    assert Restored(form).value["step"] is Step.FIRST
    monkeypatch.setattr(sys.modules[__name__], "State", enum.StrEnum("State", {"DONE": "over"}, module=__name__))
    monkeypatch.delattr(sys.modules[__name__], "Step")
    found = Restored(form)
    state, step = found.value["state"], found.value["step"]
    assert (state, state.name, state.value, f"{state}") == ("done", "DONE", "done", "done")
    assert (step.name, step.value) == ("FIRST", (1, "one"))
    assert found.refused == []
    with pytest.raises(NotRecorded, match="Step object has its name and value only"):
        assert step != (1, "one")


def test_a_path_has_its_text_but_no_file() -> None:
    found = restored(pathlib.Path("/a/b.txt"))
    path = found.value
    assert (path, str(path / "c"), path.parent.name) == (pathlib.Path("/a/b.txt"), "/a/b.txt/c", "a")
    assert isinstance(path, pathlib.Path)
    with pytest.raises(NotRecorded, match="'exists' was read"):
        path.exists()


def test_numpy_scalars_are_python_values_where_numpy_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    form = form_of([numpy.float32(0.5), numpy.int64(3), numpy.float64(math.inf)])
    monkeypatch.delitem(sys.modules, "numpy")
    found = Restored(form).value
    assert same(found, [0.5, 3, math.inf])


def test_a_default_dict_keeps_its_order_and_the_factory_that_is_a_plain_class() -> None:
    given: list[Any] = [collections.defaultdict(list), collections.defaultdict(lambda: 3, a=1)]
    found = restored(given)
    lists, threes = found.value
    assert (lists["new"], threes["a"]) == ([], 1)
    with pytest.raises(NotRecorded, match="does not have its function"):
        threes["b"]
    ordered = collections.OrderedDict[str, int](a=1, b=2)
    ordered.move_to_end("a")
    assert list(restored(ordered).value) == ["b", "a"]


def test_what_a_class_may_answer_otherwise_is_not_kept() -> None:
    class Elusive(str):
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            return super().__getattribute__(name)

    zoned = datetime.datetime(2026, 1, 6, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    found = restored([Elusive("a"), zoned, numpy.zeros(2), collections.UserDict(a=1)])
    for value in found.value:
        with pytest.raises(NotRecorded, match="the record has its text only"):
            str(value)


def test_a_key_that_needs_what_is_not_recorded_is_no_record() -> None:
    with pytest.raises(ValueError, match="'__hash__' was read"):
        restored({Box(): 1})


def test_secrets_are_left_out() -> None:
    key = "sk-ant-api03-" + "aB3dE5fG7h" * 9
    form = form_of({"api_key": key, "key": "a word", "text": "the word"})
    assert key not in form
    assert Restored(form).value["key"] == "a word"
    assert key not in form_of({Plain("api_key"): Plain(key)})
    assert "sk-1" not in form_of(Message(content="x"))
    assert key in form_of({"api_key": key}, secrets=True)


def test_a_value_that_cannot_be_kept_has_a_reason() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert recorded_form(endless).reason == "it contains itself"
    assert "half of a surrogate" in recorded_form(["\ud800"]).reason
    assert "256 KiB" in recorded_form("x" * 300_000).reason
    assert "20,000 values" in recorded_form([0] * 30_000).reason
    with pytest.raises(OverLimits):
        recorded_form([0] * 30, FormLimits(values=10, raises=True))


def test_a_forged_subclass_has_no_method_that_its_base_lacks() -> None:
    own = '["__init__", "__new__", "__del__", "__getattribute__", "__class__", "__slots__", "_leyden_of", "upper"]'
    forged = f'{{"$": "subclass", "class": ["zipfile.ZipFile"], "own": {own}, "items": ["__init__"], "of": "a"}}'
    found = Restored(forged)
    assert found.value == "a"
    with pytest.raises(NotRecorded):
        found.value.upper()
    for text in (
        '{"$": "subclass", "class": ["a.B"], "own": [], "items": [], "of": true}',
        '{"$": "subclass", "class": ["a.B"], "own": [], "items": [], "of": {"$": "range", "of": [1, 2, 1]}}',
        '{"$": "subclass", "class": 3, "of": 1}',
        '{"$": "numpy", "type": "object", "of": 1}',
        '{"$": "object", "n": 0, "of": ["a"], "fields": [1]}',
    ):
        with pytest.raises(ValueError, match="not a recorded form"):
            Restored(text)


def test_a_forged_record_calls_no_method_of_the_standard_library() -> None:
    forged = Restored('{"$": "object", "n": 0, "of": ["zipfile.ZipFile"], "fields": {"fp": 1}}').value
    assert zipfile.ZipFile.close
    for read in (lambda: forged.close, lambda: str(forged)):
        with pytest.raises(NotRecorded):
            read()


def test_other_text_is_no_recorded_form() -> None:
    for text in (
        '{"$": "object"}',
        '{"$": "eval", "of": "1"}',
        '{"$": "ref", "of": 3}',
        "{",
        '{"$": "UUID", "of": "x"}',
    ):
        with pytest.raises(ValueError, match=r".+"):
            Restored(text)


def test_values_of_kinds_that_json_lacks_have_a_mark() -> None:
    values = [(1,), {2}, b"3", decimal.Decimal("4.50"), uuid.UUID(int=5), datetime.date(2026, 1, 6)]
    kinds = [each["$"] for each in json.loads(form_of(values))]
    assert kinds == ["tuple", "set", "bytes", "Decimal", "UUID", "date"]
