from typing import Any

from leyden.core.tracing.patching.patches import Patches


class Base:
    def say(self) -> str:
        return "base"


class Below(Base):
    pass


def louder(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> str:
    return wrapped(*args, **kwargs).upper()


def test_undo_leaves_classes_as_they_were() -> None:
    before = dict(vars(Base)), dict(vars(Below))
    patches = Patches()
    patches.methods(Base, {"say": louder})
    patches.method(Below, "say", louder)

    class Later(Base):
        def say(self) -> str:
            return "later"

    assert [kind().say() for kind in (Base, Below, Later)] == ["BASE", "BASE", "LATER"]
    patches.undo()
    assert [kind().say() for kind in (Base, Below, Later)] == ["base", "base", "later"]
    assert (dict(vars(Base)), dict(vars(Below))) == before


def test_what_others_patched_over_stays_and_passes_on() -> None:
    class Target:
        def say(self) -> str:
            return "target"

    patches = Patches()
    patches.method(Target, "say", louder)
    ours: Any = Target.say

    def theirs(self: Target) -> str:
        return f"({ours(self)})"

    Target.say = theirs
    assert Target().say() == "(TARGET)"
    patches.undo()
    assert Target.say is theirs
    assert Target().say() == "(target)"
