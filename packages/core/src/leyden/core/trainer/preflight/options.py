"""Options check: detects given options that nothing reads."""

from collections.abc import Mapping
from typing import Any

import msgspec

from leyden.core.algorithm.base import Algorithm
from leyden.core.algorithm.registry import make_algorithm
from leyden.core.data.route import Route
from leyden.core.data.scheme import nested
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.preflight.evidence import Rehearsal
from leyden.core.trainer.preflight.report import CheckResult, failure, ok


class OptionReads:
    """Algorithm whose configuration records which of its options are read.

    Reads during the configuration's own validation do not count, because the code that uses an option reads it again.
    Options at their default do not count either: Python supplies all of them, and ignoring one has no effect.
    """

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        made = make_algorithm(name, config)
        self.given = sorted(nested(config).keys() & _changed(made.config))
        self.read: set[str] = set()
        self.algorithm: Algorithm = type(made)(_recording(made.config, self.read))

    @property
    def unread(self) -> tuple[str, ...]:
        """Options that were given and that nothing has read."""
        return tuple(name for name in self.given if name not in self.read)


def _changed(config: msgspec.Struct) -> set[str]:
    """Return the options that differ from their default."""
    changed: set[str] = set()
    for option in msgspec.structs.fields(config):
        made = option.default_factory
        default = option.default if made is msgspec.NODEFAULT else made()
        if default is msgspec.NODEFAULT or getattr(config, option.name) != default:
            changed.add(option.name)
    return changed


def _recording(config: msgspec.Struct, read: set[str]) -> msgspec.Struct:
    """Return the same configuration as an instance of a subclass that records reads in `read`."""
    kind = type(config)
    fields = frozenset(kind.__struct_fields__)

    def note(self: Any, name: str) -> Any:
        if name in fields:
            read.add(name)
        return object.__getattribute__(self, name)

    body = {"__getattribute__": note, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    recording: Any = msgspec.defstruct(kind.__name__, (), bases=(kind,), namespace=body)
    made: msgspec.Struct = recording(**{name: getattr(config, name) for name in kind.__struct_fields__})
    read.clear()
    return made


def check_options(config: RunConfig, rehearsal: Rehearsal | None = None) -> CheckResult:
    """Check that every given option is used.

    A configuration itself refuses options that other options disable, before this check. This check finds options of an
    algorithm that it did not read until the end of its first step, and policies that no route reaches.
    """
    called = make_algorithm(config.algorithm, config.algorithm_config).called_policies if config.frozen else ()
    unrouted = sorted(config.frozen.keys() - {route.to for route in _routes(config)} - {*called})
    if unrouted:
        seen = f"--frozen {', '.join(unrouted)} would be loaded but never called: no route leads to it"
        return failure("options", seen, f"give --route PATTERNS,to={unrouted[0]}, or leave it out")
    if rehearsal is not None and rehearsal.unread:
        names = ", ".join(rehearsal.unread)
        seen = f"{names} was given to algorithm {config.algorithm}, which did not read it"
        return failure("options", seen, "remove it; or give --no-check, if it is read only after the first step")
    given = sorted(nested(config.algorithm_config))
    return ok("options", f"all used: {', '.join(given)}" if given else "none given to the algorithm")


def _routes(config: RunConfig) -> tuple[Route, ...]:
    return config.routes
