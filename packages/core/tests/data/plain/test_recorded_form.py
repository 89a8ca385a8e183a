import dataclasses
import datetime
import decimal
import json
import math
import sys
import types
import uuid
import zipfile
from typing import Any

import msgspec
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
    ),
    max_leaves=12,
)


def form_of(value: object, **given: Any) -> str:
    form = recorded_form(value, **given)
    assert form.text is not None, form.reason
    return form.text


def restored(value: object) -> Restored:
    return Restored(form_of(value))


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types at every level."""
    if type(one) is not type(other):
        return False
    if type(one) in (dict, list, tuple):
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


def test_secrets_are_left_out() -> None:
    key = "sk-ant-api03-" + "aB3dE5fG7h" * 9
    form = form_of({"api_key": key, "key": "a word", "text": "the word"})
    assert key not in form
    assert Restored(form).value["key"] == "a word"
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
