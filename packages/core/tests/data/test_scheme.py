"""Schemes by name: settings in, an object out, and the same settings back."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from leyden.core.data import scheme
from leyden.core.data.scheme import Schemes
from leyden.core.errors import UsageError


class Shape(ABC):
    @abstractmethod
    def area(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Square(Shape):
    side: float = 1.0

    def __post_init__(self) -> None:
        if self.side < 0:
            raise ValueError("side must not be negative")

    def area(self) -> float:
        return self.side**2


class Dot(Shape):
    def area(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled(Shape):
    factor: float
    shape: Shape = Square()
    more: tuple[Shape, ...] = ()

    def area(self) -> float:
        return self.factor * (self.shape.area() + sum(shape.area() for shape in self.more))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugged(Shape):
    size: int = 3

    def area(self) -> float:
        return float(self.size)


class Stranger(Shape):
    def area(self) -> float:
        return 1.0


SHAPES = Schemes[Shape]("shape", Shape, "leyden.shapes", {"square": Square, "dot": Dot, "scaled": Scaled})
HERE = f"{Plugged.__module__}:{Plugged.__qualname__}"


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """What packages would have installed."""
    values = {"plugged": HERE, "broken": "no_such_package_here:Shape", "odd": "builtins:dict", "square": HERE}
    entries = [EntryPoint(name=name, value=value, group="leyden.shapes") for name, value in values.items()]

    def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
        return [entry for entry in entries if entry.group == group and name in (None, entry.name)]

    def load(entry: EntryPoint) -> Any:
        return Plugged if entry.value == HERE else real(entry)

    real = EntryPoint.load
    monkeypatch.setattr(EntryPoint, "load", load)
    monkeypatch.setattr(scheme, "entry_points", entry_points)


def test_a_name_or_a_mapping_makes_it() -> None:
    assert SHAPES.make("square") == Square()
    assert SHAPES.make({"name": "square", "side": 2}) == Square(side=2.0)
    assert isinstance(SHAPES.make("dot"), Dot)
    made = SHAPES.make(
        {"name": "scaled", "factor": 2, "shape": {"name": "square", "side": 3}, "more": ["dot", "square"]}
    )
    assert made.area() == 20.0
    assert SHAPES.make(made) is made


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "dot"},
        {"name": "plugged", "size": 4},
        {"name": "scaled", "factor": 2.0, "shape": {"name": "dot"}, "more": [{"name": "square", "side": 3.0}]},
    ],
)
def test_settings_come_back_whole(settings: dict[str, Any]) -> None:
    assert SHAPES.settings(SHAPES.make(settings)) == settings


def test_defaults_are_reported_too() -> None:
    assert SHAPES.settings(SHAPES.make("square")) == {"name": "square", "side": 1.0}


def test_plug_ins_are_found_by_name_and_cannot_take_a_built_in_one() -> None:
    assert SHAPES.make("plugged") == Plugged()
    assert SHAPES.make("square") == Square()
    assert SHAPES.names() == ["broken", "dot", "odd", "plugged", "scaled", "square"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("circle", "unknown shape 'circle'; use one of broken, dot, odd, plugged, scaled, square"),
        ({"name": "square", "sid": 1}, "shape 'square' has no option 'sid'; it has side"),
        ({"name": "dot", "side": 1}, "shape 'dot' has no option 'side'; it has no options"),
        ({"name": "square", "side": "two"}, r"shape 'square': Expected `float`, got `str` - at `\$.side`"),
        ({"name": "square", "side": -1}, "side must not be negative"),
        ({"name": "scaled"}, "missing required field `factor`"),
        ({"name": "scaled", "factor": 1, "shape": {"name": "square", "sid": 1}}, "'square' has no option 'sid'"),
        ({"name": "scaled", "factor": 1, "shape": "circle"}, "unknown shape 'circle'"),
        ({"side": 1}, "a mapping with a `name`"),
        (7, "a name, or a mapping"),
        ("broken", "'broken' .no_such_package_here:Shape. cannot be loaded"),
        ("odd", "'odd' .builtins:dict. is not a Shape"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(settings: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        SHAPES.make(settings)
    assert "\n" not in str(caught.value)


def test_what_has_no_name_cannot_be_reported() -> None:
    with pytest.raises(UsageError, match="Stranger is not a registered shape"):
        SHAPES.settings(Stranger())
